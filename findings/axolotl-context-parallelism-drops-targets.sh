#!/usr/bin/env bash
# Expected: context parallelism divides the work on a row and trains the same tokens: all but the first.
# Found: Axolotl divides tokens and labels alike, and the model shifts labels within its own part. The last token of a
#   part has no label to predict, and the first token of the next part is never a target: with N processes, N - 1 tokens
#   of every row are not trained.
# Matters: always the same places, so for rows of one layout always the same tokens. The counts of trained tokens, which
#   read the labels, include them, and the loss looks as usual.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.16.1 numpy==2.4.6
"$folder/bin/pip" install --quiet --no-compile --no-deps axolotl==0.19.0 accelerate==1.13.0 psutil==7.2.2
"$folder/bin/python" - <<'END'
import importlib.metadata
import sys

import torch
import transformers
from axolotl.utils.ctx_managers.sequence_parallel import apply_sequence_parallelism
from axolotl.utils.schemas.enums import RingAttnFunc
from transformers.loss.loss_utils import ForCausalLMLoss  # the loss of LlamaForCausalLM and most others

TOKENS = 16


def targets(processes):
    """Tokens that some loss depends on: those after a place whose logits have a gradient."""
    trained = []
    for rank in range(processes):
        batch, *_ = apply_sequence_parallelism(
            {"input_ids": torch.arange(TOKENS)[None], "labels": torch.arange(TOKENS)[None]},
            local_rank=rank, local_world_size=processes, gradient_accumulation_steps=1,
            ring_attn_func=RingAttnFunc.VARLEN_LLAMA3,
        )
        logits = torch.zeros(*batch["input_ids"].shape, TOKENS, requires_grad=True)
        ForCausalLMLoss(logits=logits, labels=batch["labels"], vocab_size=TOKENS).backward()
        places = logits.grad[0].abs().sum(-1).nonzero()[:, 0]
        trained += (batch["input_ids"][0, places] + 1).tolist()
    return trained


versions = importlib.metadata.version("axolotl"), transformers.__version__
print("Axolotl {}, transformers {}: targets in a row of 16 tokens, all of which have a label".format(*versions))
found = {processes: targets(processes) for processes in (1, 2, 4)}
for processes, tokens in found.items():
    print(f"processes: {processes}; targets: {tokens}")
if found != {n: [token for token in range(1, 16) if token % (16 // n)] for n in (1, 2, 4)}:
    sys.exit("changed: the first token of each part used to be no target")
END
