#!/usr/bin/env bash
# Expected: all decoders with rotary positions build their masks by the same code, so what keeps the packed documents
#   of a Llama apart keeps those of a Falcon apart.
# Found: in transformers 5.23, Falcon with sdpa hears of the boundaries (positions restart, use_cache=False), rotates by
#   them, and still attends to the documents before. 5.24 has mended it.
# Matters: a test with one model family says nothing about the next one, nor about another version of the same family.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/bin/python" - <<'END'
import sys

import torch
import transformers

leaks = {}
for family in ("Llama", "Falcon"):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3,
        attn_implementation="sdpa",
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    first, changed, second = (torch.arange(start, start + 5)[None] for start in (5, 40, 20))
    positions = torch.arange(5).repeat(2)[None]
    with torch.no_grad():
        logits = [
            model(torch.cat([before, second], dim=1), position_ids=positions, use_cache=False).logits[:, 5:]
            for before in (first, changed)
        ]
    leaks[family] = (logits[0] - logits[1]).abs().max().item()
    print(f"transformers {transformers.__version__}, {family}, sdpa: the second document's logits moved by "
          f"{leaks[family]:.1e} when the first one changed")
if leaks["Llama"] > 1e-4 or leaks["Falcon"] < 0.1:
    sys.exit("changed: Falcon used to leak, and Llama not")
END
