#!/usr/bin/env bash
# Expected: with a correct padding mask, the logits of a sequence do not depend on what else is in its batch.
# Found: LongRoPE (Phi-3, Phi-4-mini) chooses between its short and long frequencies once for a batch, by the largest
#   position in it. A short sequence beside a long one is rotated by the long frequencies, in every layer.
# Matters: short examples are trained with other positions than those of inference, depending on which examples share
#   their batch or row; batch size and packing change the loss without any leak in attention.
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
config = transformers.Phi3Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    max_position_embeddings=64, original_max_position_embeddings=16,
    rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16, "factor": 4.0,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    },
)
model = transformers.Phi3ForCausalLM(config).eval()
short = torch.arange(3, 11)


def logits_beside(length):
    """Logits of the short sequence in a padded batch with another of `length` tokens."""
    tokens, mask = torch.zeros(2, length, dtype=torch.long), torch.ones(2, length, dtype=torch.long)
    tokens[0, :8], tokens[1], mask[0, 8:] = short, torch.arange(3, 3 + length), 0
    return model(tokens, attention_mask=mask).logits[0, :8]


with torch.no_grad():
    alone = model(short[None]).logits[0]
    moved = {length: (logits_beside(length) - alone).abs().max().item() for length in (16, 17)}
print(f"transformers {transformers.__version__}, Phi-3 with LongRoPE from 16 tokens on, a sequence of 8 tokens")
for length, difference in moved.items():
    print(f"beside a sequence of {length} tokens, its logits differ from those alone by {difference:.1e}")
if moved[16] > 1e-4 or moved[17] < 0.1:
    sys.exit("changed: a neighbor of 17 tokens, and none of 16, used to change the logits")
END
