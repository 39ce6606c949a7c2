#!/usr/bin/env bash
# Expected: a key-value cache saves work in later calls, and changes nothing in a single forward pass.
# Found: positions that restart keep the documents of a row apart on sdpa with use_cache=False only. With the default,
#   use_cache=True, transformers makes a cache, takes the row for one document, and says nothing.
# Matters: a training loop of one's own, or an evaluation, passes position_ids and lets every document see the ones
#   before it. Trainer switches the cache off, so a comparison with it does not show the cause.
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
    initializer_range=0.3, attn_implementation="sdpa",
)
model = transformers.LlamaForCausalLM(config).eval()
documents = [torch.arange(5, 10)[None], torch.arange(20, 24)[None]]
row = {"input_ids": torch.cat(documents, dim=1), "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])}
with torch.no_grad():
    alone = torch.cat([model(document).logits for document in documents], dim=1)
    without = (model(**row, use_cache=False).logits - alone).abs().max().item()
    default = (model(**row).logits - alone).abs().max().item()
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print("logits of a packed row against single documents")
print(f"largest difference with use_cache=False: {without:.1e}")
print(f"largest difference by default:           {default:.1e}")
if without > 1e-4 or default < 0.1:
    sys.exit("changed: the default used to mix documents, and use_cache=False not")
END
