#!/usr/bin/env bash
# Expected: PackedSeqParams with cu_seqlens keeps documents apart in every layer of megatron-core, as it did in 0.16.
# Found: since the numbers of documents are computed in PackedSeqParams, layers of Mamba get them only if the optional
#   `total_tokens` is given, too. Without it, state and convolution run on from one document into the next.
# Matters: attention layers of the same model keep documents apart, no warning is given, and code that was right for
#   megatron-core 0.16 mixes documents with 0.19.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6 einops==0.8.2 triton==3.9.0 packaging==26.4
# The package asks for Python 3.12, but these modules also run with 3.11.
"$folder/bin/pip" install --quiet --no-compile --no-deps --target "$folder/megatron" --only-binary :all: \
    --ignore-requires-python --python-version 3.12 --platform manylinux_2_28_x86_64 megatron-core==0.19.2
PYTHONPATH="$folder/megatron" "$folder/bin/python" -W ignore - <<'END' 2>"$folder/log" || { cat "$folder/log"; exit 1; }
import contextlib
import sys
from types import SimpleNamespace

import megatron.core
import torch
import torch.distributed as distributed
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import mamba_mixer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from torch.nn.functional import silu, softplus


def scan(zxbcdt, weight, bias, dt_bias, A, D, *, seq_idx, headdim, **_):
    """Mamba's kernel, which needs a GPU, token by token: state and convolution begin anew where seq_idx changes."""
    heads, width = len(dt_bias), len(dt_bias) * headdim
    states = (len(weight) - width) // 2
    z, xbc, dt = zxbcdt[0].split([width, len(weight), heads], -1)
    documents = [0] * len(z) if seq_idx is None else seq_idx[0].tolist()
    outputs = []
    for place, document in enumerate(documents):
        if place == 0 or document != documents[place - 1]:
            state, first = torch.zeros(heads, headdim, states), place
        seen = xbc[max(first, place + 1 - weight.shape[1]) : place + 1]
        x, B, C = silu(bias + (weight[:, -len(seen) :] * seen.T).sum(1)).split([width, states, states])
        x, step = x.view(heads, headdim), softplus(dt[place] + dt_bias)
        state = state * (step * A).exp()[:, None, None] + (step[:, None] * x)[:, :, None] * B
        outputs.append(((state * C).sum(-1) + D[:, None] * x).flatten() * silu(z[place]))
    return torch.stack(outputs)[None]


mamba_mixer.HAVE_MAMBA_SSM = True
mamba_mixer.mamba_split_conv1d_scan_combined = scan
mamba_mixer._check_mamba_sequence_packing_support = lambda **_: (True, None)
mamba_mixer.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=contextlib.nullcontext)
torch.cuda.current_device = lambda: "cpu"
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
config = TransformerConfig(
    num_layers=1, hidden_size=16, num_attention_heads=2, mamba_state_dim=8, mamba_head_dim=8, mamba_num_groups=1,
    use_cpu_initialization=True, init_method_std=0.3,
)
torch.manual_seed(0)
layer = mamba_mixer.MambaMixer(
    config, mamba_mixer.MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear), 16,
    rmsnorm=False, layer_number=1, pg_collection=ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"]),
)
tokens = torch.randn(8, 1, 16)
changed = torch.cat([tokens[:5] * 2, tokens[5:]])
bounds = torch.tensor([0, 5, 8], dtype=torch.int32)
print(f"megatron-core {megatron.core.__version__}, torch {torch.__version__}; documents of 5 and 3 tokens")
moved = {}
for name, more in ("without", {}), ("with", {"total_tokens": 8}):
    params = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=5, max_seqlen_kv=5, **more
    )
    with torch.no_grad():
        first, second = (layer(each, packed_seq_params=params)[0] for each in (tokens, changed))
    moved[name] = (first - second)[5:].abs().max().item()
    print(f"{name} total_tokens: the second document moved by {moved[name]:.1e} when the first one changed")
distributed.destroy_process_group()
if moved["without"] < 0.1 or moved["with"]:
    sys.exit("changed: documents used to be apart only with total_tokens")
END
