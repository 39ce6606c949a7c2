#!/usr/bin/env bash
# Expected: both ways in which ringmaster divides a batch among processes keep its documents apart, as its README says
#   of "the context manager" for position_ids and cu_seqlens of packed documents.
# Found: ContextParallelContextManager does. context_parallel_region, in README's quickstart and the adapters for raw
#   PyTorch and accelerate, is given the same batch, drops the boundaries, and the second document sees the first one.
# Matters: no error and no warning; positions restart at each document, and the loss looks usual.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.20.1 numpy==2.4.6
"$folder/bin/pip" install --quiet --no-compile --no-deps axolotl-ringmaster==0.2.7
cat > "$folder/finding.py" <<'END'
import importlib.metadata
import sys

import ringmaster
import torch
import torch.distributed as dist
import torch.multiprocessing
from ringmaster.adapters.accelerate import context_parallel_region
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

DOCUMENTS = [list(range(3, 23)), list(range(40, 52))]


def compare(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    alone = torch.cat([model(torch.tensor([tokens])).logits[0] for tokens in DOCUMENTS])

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)  # position_ids and cu_seq_lens_q
    batch = collate([{"input_ids": tokens} for tokens in DOCUMENTS])
    setup = ringmaster.RingmasterConfig(size=2, backend=ringmaster.Backend.ULYSSES)
    runtime = ringmaster.setup(setup, num_kv_heads=2, device_type="cpu", inner_attn="sdpa")
    model.set_attn_implementation(runtime.attn_implementation)
    parts = {}
    with context_parallel_region(dict(batch)) as part:
        parts["context_parallel_region"] = model(**part).logits[0]
    with ringmaster.ContextParallelContextManager([model], runtime.cp_group):
        parts["ContextParallelContextManager"] = model(**batch).logits[0]

    errors = {}
    for name, part in parts.items():
        both = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(both, part.contiguous())
        each = (torch.cat(both) - alone).abs().amax(-1).split([len(tokens) for tokens in DOCUMENTS])
        errors[name] = [error.max().item() for error in each]
    dist.destroy_process_group()
    if rank == 0:
        print(f"ringmaster {importlib.metadata.version('axolotl-ringmaster')}, two processes, two documents in a row")
        for name, (first, second) in errors.items():
            print(f"{name}: largest error of a logit, first document {first:.1e}, second {second:.1e}")
    region, manager = errors.values()
    if max(*manager, region[0]) > 1e-4 or region[1] < 1:
        sys.exit("changed: only context_parallel_region used to mix documents")


if __name__ == "__main__":
    torch.multiprocessing.spawn(compare, args=(sys.argv[1],), nprocs=2)
END
"$folder/bin/python" "$folder/finding.py" "$folder"
