#!/usr/bin/env bash
# Expected: a model converted by .double() computes in double precision, so implementations agree to about 1e-15.
# Found: a Llama takes its norms, and eager attention its softmax, in float32 and converts back; the loss is computed
#   in float32, too. The logits are float64 by dtype, and accurate to about 1e-6 only.
# Matters: double precision is what one reaches for to tell a small leak from rounding. Here, the rounding stays, and a
#   comparison of sdpa with eager at 1e-10 fails without any fault in either.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$folder/bin/python" - <<'END'
import sys

import torch
import transformers

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    initializer_range=0.3,
)
model = transformers.LlamaForCausalLM(config).double().eval()
tokens = torch.arange(3, 20)[None]
found = {}
for implementation in ("eager", "sdpa"):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        found[implementation] = model(tokens, labels=tokens, use_cache=False)
difference = (found["eager"].logits - found["sdpa"].logits).abs().max().item()
dtypes = found["eager"].logits.dtype, found["eager"].loss.dtype
print(f"transformers {transformers.__version__}, torch {torch.__version__}: a Llama of float64 weights")
print(f"logits are {dtypes[0]}, the loss is {dtypes[1]}")
print(f"largest difference between logits of eager and sdpa: {difference:.1e}")
if dtypes != (torch.float64, torch.float32) or not 1e-9 < difference < 1e-3:
    sys.exit("changed: the softmax of eager attention and the loss used to be of float32")
END
