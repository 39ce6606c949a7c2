#!/usr/bin/env bash
# Expected: accelerate's prepare() passes a ready batch on as it is, whatever kind of dataset it comes from.
# Found: for an IterableDataset it dispatches batches, also in a single process, and slices every tensor to the first
#   dimension of the first one. A flat batch has one row, so cu_seq_lens_q, [0, 5, 9], becomes [0]. The same batch of a
#   map-style dataset arrives whole.
# Matters: cu_seq_lens_q is what keeps packed documents apart in FlashAttention and in state-space layers; the other
#   tensors have one row and look right. dispatch_batches=False avoids it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 accelerate==1.15.0 numpy==2.4.6
"$folder/bin/python" - <<'END'
import sys

import accelerate
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

BATCH = {
    "input_ids": torch.arange(10, 19)[None],
    "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]]),
    "cu_seq_lens_q": torch.tensor([0, 5, 9], dtype=torch.int32),
}


class MapStyle(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return BATCH


class Iterable(IterableDataset):
    def __iter__(self):
        yield BATCH


found = {}
for dataset in (MapStyle(), Iterable()):
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(dataset, batch_size=None))
    (batch,) = loader
    name = type(dataset).__name__
    found[name] = batch["cu_seq_lens_q"].tolist()
    tokens = batch["input_ids"].numel()
    print(f"accelerate {accelerate.__version__}, {name}: {tokens} tokens, cu_seq_lens_q is {found[name]}")
if found != {"MapStyle": [0, 5, 9], "Iterable": [0]}:
    sys.exit("changed: only the batch of the IterableDataset used to be cut")
END
