#!/usr/bin/env bash
# Expected: NeMo Automodel's collator for packed rows returns positions that restart, and FlashAttention of transformers
#   keeps documents apart by them, with one row in a batch or several.
# Found: transformers looks for boundaries in a batch of a single row only. The collator stacks rows, so from two rows
#   on its batch runs the plain causal kernel, and documents attend to the ones before them in their row. The lengths
#   that the collator also returns (seq_lens) are for Transformer Engine; transformers does not read them.
# Matters: a test with a batch of one row passes, and the first run with a larger batch mixes documents.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.18.0 numpy==2.4.6
"$folder/bin/pip" install --quiet --no-compile --no-deps nemo-automodel==0.7.0
"$folder/bin/python" - <<'END'
import importlib.metadata
import sys
from unittest import mock

import torch
import transformers
from nemo_automodel.components.datasets.utils import packed_sequence_thd_collater
from torch.nn.functional import scaled_dot_product_attention
from transformers import modeling_flash_attention_utils


# flash-attn needs a GPU: its two functions, by torch, for lack of one


def whole_rows(q, k, v, **_):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def by_lengths(q, k, v, cu_seqlens_q, **_):
    bounds = cu_seqlens_q.tolist()
    parts = [whole_rows(q[None, a:b], k[None, a:b], v[None, a:b])[0] for a, b in zip(bounds, bounds[1:])]
    return torch.cat(parts)


kernels = (whole_rows, by_lengths, None, None, None), lambda **_: {}


def attention_of_last_documents(rows, first_documents):
    row = {"input_ids": list(range(8)), "labels": list(range(8)), "position_ids": [0, 1, 2, 3, 4, 0, 1, 2],
           "seq_lens": [5, 3], "seq_lens_padded": [5, 3]}
    batch = packed_sequence_thd_collater([row] * rows)
    torch.manual_seed(0)
    states = torch.randn(3, *batch["input_ids"].shape, 2, 4)
    states[:, :, :5] *= first_documents
    with mock.patch.object(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda *_, **__: kernels):
        return modeling_flash_attention_utils._flash_attention_forward(
            *states, attention_mask=None, query_length=8, is_causal=True, position_ids=batch["position_ids"]
        )[:, 5:]


moved = {}
for rows in (1, 2):
    changed = attention_of_last_documents(rows, 1.0) - attention_of_last_documents(rows, 2.0)
    moved[rows] = changed.abs().max().item()
print(f"NeMo Automodel {importlib.metadata.version('nemo-automodel')}, transformers {transformers.__version__}")
for rows, difference in moved.items():
    print(f"rows in the batch: {rows}; last documents moved by {difference:.1e} when the first ones changed")
if moved[1] or moved[2] < 0.1:
    sys.exit("changed: documents used to be apart in one row, and mixed in two")
END
