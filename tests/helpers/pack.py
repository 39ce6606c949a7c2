"""What `tests/test_pack.py` shares with other tests."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

import packer
from packer.stores import AnyPath
from tests.helpers.writing import write_ipc


def save_arrow(path: Path, documents: list[list[int]], labels: list[list[int]] | None = None) -> Path:
    columns = {"input_ids": pa.array(documents, pa.list_(pa.int32()))}
    if labels is not None:
        columns["labels"] = pa.array(labels, pa.list_(pa.int32()))
    return write_ipc(path, pa.table(columns), rows=100)


def made_documents(count: int, longest: int = 60, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(1, 1000, length).tolist() for length in random.integers(0, longest, count)]


def hashes(folder: AnyPath) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def segments_in(dataset: packer.PackedDataset):
    """Yield (document, start, tokens, labels) of every segment in the rows."""
    pad_id = dataset.manifest.options.pad_id
    for row in dataset:
        place = 0
        lengths = row.get("seq_tokens", np.where(row["doc_ids"] < 0, 0, row["seq_lengths"]))
        segments = zip(row["seq_lengths"], lengths, row["doc_ids"], row["doc_starts"], strict=True)
        for extent, length, document, start in segments:
            tokens, labels = (row[name][place : place + extent].tolist() for name in ("input_ids", "labels"))
            place += extent
            if document >= 0:
                yield int(document), int(start), tokens[:length], labels[:length]
            assert set(tokens[length:]) <= {pad_id}
            assert set(labels[length:]) <= {-100}
        assert place == dataset.max_len
