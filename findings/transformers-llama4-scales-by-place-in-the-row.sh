#!/usr/bin/env bash
# Expected: a model that gets position_ids takes every position from them.
# Found: Llama 4 scales the queries of its layers without rotary positions by the place of a token in the row
#   (attn_temperature_tuning), whatever position_ids say. Documents stay apart, yet the second one is computed
#   differently from the same document alone. Real configurations begin to scale at 8,192 tokens; here, at 4.
# Matters: a probe that changes one document and looks at another finds nothing, and neither do short rows.
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
config = transformers.Llama4TextConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, intermediate_size_mlp=64, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=2, initializer_range=0.3,
    pad_token_id=0, attention_chunk_size=64, no_rope_layers=[1, 1, 1, 0], attn_temperature_tuning=True, floor_scale=4,
    attn_scale=1.0, attn_implementation="sdpa",
)
model = transformers.Llama4ForCausalLM(config).eval()
first, second = torch.arange(3, 9)[None], torch.arange(20, 30)[None]
positions = torch.tensor([[*range(6), *range(10)]])


def packed(before):
    tokens = torch.cat([before, second], dim=1)
    return model(tokens, position_ids=positions, use_cache=False).logits[:, 6:]


with torch.no_grad():
    leak = (packed(first) - packed(first.flip(1))).abs().max().item()
    difference = (packed(first) - model(second, use_cache=False).logits).abs().max().item()
    for layer in model.model.layers:
        layer.self_attn.attn_temperature_tuning = False
    untuned = (packed(first) - model(second, use_cache=False).logits).abs().max().item()
print(f"transformers {transformers.__version__}, Llama 4: logits of the second document of a row")
print(f"moved by {leak:.1e} when the first document changed")
print(f"differ by {difference:.1e} from the document alone, and by {untuned:.1e} without the scaling")
if leak > 1e-6 or difference < 0.01 or untuned > 1e-4:
    sys.exit("changed: the scaling used to depend on the place in the row")
END
