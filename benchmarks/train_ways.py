"""The ways in which documents come to a model, for bench_train.py: made documents, and batches without an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

import packer

PADDING, NO_LOSS = 0, -100
GROUPED = 50  # batches that are sorted together, as transformers' LengthGroupedSampler does

Batch = dict[str, Any]
Tokens = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How documents come to the model."""

    batches: Callable[[], Iterator[Batch]]
    """Batches without an end."""

    per_step: int
    """Batches of an optimizer step."""

    segments: bool
    """Whether batches have boundaries, for packer.attention."""


class Documents(Dataset[dict[str, list[int]]]):
    """Documents as lists, as a dataset of Hugging Face hands them out."""

    def __init__(self, documents: Sequence[Tokens]) -> None:
        self.documents = documents

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        return {"input_ids": self.documents[number].tolist()}


# ---- documents ----


def read_lengths(path: Path | None, documents: int, max_len: int) -> NDArray[np.int64]:
    random = np.random.default_rng(0)
    given = random.lognormal(4.5, 1.0, documents) if path is None else random.permutation(np.load(path))[:documents]
    return np.clip(given.astype(np.int64), 1, max_len)


def make_documents(lengths: NDArray[np.int64], vocabulary: int) -> list[Tokens]:
    """Random tokens by Zipf's law from 1 on: 0 is padding."""
    random = np.random.default_rng(0)
    shares = 1 / np.arange(1, vocabulary)
    tokens = random.choice(np.arange(1, vocabulary, dtype=np.int32), lengths.sum(), p=shares / shares.sum())
    return np.split(tokens, np.cumsum(lengths)[:-1])


def pack(documents: list[Tokens], folder: Path, max_len: int) -> packer.PackedDataset:
    offsets = pa.array(np.cumsum([0, *map(len, documents)]).astype(np.int64))
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(documents)))})
    with pa.OSFile(str(folder / "documents.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    packer.pack(folder / "documents.arrow", folder / "packed", max_len=max_len, pad_id=PADDING, sync=False)
    return packer.load(folder / "packed")


# ---- ways ----


def pad(examples: list[dict[str, list[int]]]) -> Batch:
    """A row per document, padded on the right, which causal attention never looks at."""
    longest = max(len(example["input_ids"]) for example in examples)
    rows = [example["input_ids"] + [PADDING] * (longest - len(example["input_ids"])) for example in examples]
    return without_boundaries(torch.tensor(rows))


def without_boundaries(input_ids: torch.Tensor) -> Batch:
    labels = input_ids.masked_fill(input_ids == PADDING, NO_LOSS)
    labels[:, 0] = NO_LOSS  # it is never predicted, and must not be counted
    return {"input_ids": input_ids, "labels": labels, "use_cache": False}


def in_order(documents: list[Tokens], size: int, epoch: int) -> Iterator[list[int]]:
    """Numbers of the documents of each batch, shuffled."""
    order = np.random.default_rng([0, epoch]).permutation(len(documents)).tolist()
    return (order[first : first + size] for first in range(0, len(order), size))


def by_length(documents: list[Tokens], size: int, epoch: int) -> Iterator[list[int]]:
    """The same, sorted by length within GROUPED batches; then these batches are shuffled."""
    random = np.random.default_rng([1, epoch])
    for group in in_order(documents, size * GROUPED, epoch):
        group.sort(key=lambda number: -len(documents[number]))
        batches = [group[first : first + size] for first in range(0, len(group), size)]
        random.shuffle(batches)
        yield from batches


def endless(batches_of: Callable[[int], Iterable[Batch]]) -> Iterator[Batch]:
    """Epoch after epoch."""
    return chain.from_iterable(map(batches_of, count()))


def make_ways(
    documents: list[Tokens], packed: packer.PackedDataset, *, rows: int, size: int, device: torch.device
) -> dict[str, Way]:
    """All ways by name; `size` is the documents of a batch where rows are documents."""
    from transformers import DataCollatorWithFlattening

    max_len, dataset = packed.max_len, Documents(documents)
    per_step = max(1, round(packer.packed_schedule(packed, batch_size=1).packing_factor * rows / size))
    flattening = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    stream = torch.from_numpy(np.concatenate(documents).astype(np.int64))
    full_rows = stream[: len(stream) // max_len * max_len].view(-1, max_len)

    def loader(sampler: Callable[..., Any], collate: Callable[[Any], Batch]) -> Callable[[], Iterator[Batch]]:
        def batches_of(epoch: int) -> Iterable[Batch]:
            return DataLoader(dataset, batch_sampler=list(sampler(documents, size, epoch)), collate_fn=collate)

        return lambda: endless(batches_of)

    def wrapped(epoch: int) -> Iterable[Batch]:
        shuffled = torch.Generator().manual_seed(epoch)
        return DataLoader(
            full_rows,
            batch_size=rows,
            shuffle=True,
            drop_last=len(full_rows) > rows,
            generator=shuffled,
            collate_fn=lambda chosen: without_boundaries(torch.stack(chosen)),
        )

    sampler = packer.BatchSampler(packed, global_batch=rows)
    packed_loader = DataLoader(packed, batch_sampler=sampler, collate_fn=packer.collate)
    ready = [move(batch, device) for batch in islice(full_batches(documents, rows * max_len), 8)]
    return {
        "padded": Way(batches=loader(in_order, pad), per_step=per_step, segments=False),
        "grouped by length": Way(batches=loader(by_length, pad), per_step=per_step, segments=False),
        "DataCollatorWithFlattening": Way(
            batches=loader(in_order, lambda examples: {**flattening(examples), "use_cache": False}),
            per_step=per_step,
            segments=True,
        ),
        "wrapped": Way(batches=lambda: endless(wrapped), per_step=1, segments=False),
        "packed": Way(batches=lambda: endless(lambda _: packed_loader), per_step=1, segments=True),
        "padding-free bound": Way(batches=lambda: cycle(ready), per_step=1, segments=True),
    }


def full_batches(documents: list[Tokens], tokens: int) -> Iterator[Batch]:
    """Documents as they come in batches of exactly so many tokens; the last one of each is cut."""
    examples, room = [], tokens
    for document in cycle(documents):
        examples.append({"input_ids": document[:room]})
        room -= len(examples[-1]["input_ids"])
        if not room:
            yield packer.flatten(examples)
            examples, room = [], tokens


def move(batch: Batch, device: torch.device) -> Batch:
    return {
        name: value.to(device, non_blocking=True) if torch.is_tensor(value) else value for name, value in batch.items()
    }
