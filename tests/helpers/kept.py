"""What `tests/test_kept.py` shares with other tests."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa

from tests.helpers.writing import write_as, write_lines

TYPES = {
    "input_ids": pa.list_(pa.int32()),
    "labels": pa.list_(pa.int32()),
    "weight": pa.float64(),
    "images": pa.int64(),
    "source": pa.string(),
    "clean": pa.bool_(),
    "logprob": pa.list_(pa.float32()),
    "kind": pa.list_(pa.int8()),
    "attention_mask": pa.list_(pa.int8()),
    "loss_mask": pa.list_(pa.bool_()),
    "completion_mask": pa.list_(pa.int64()),
    "assistant_masks": pa.list_(pa.int32()),
    **{f"{side}_{name}": pa.list_(pa.int32()) for side in ("chosen", "rejected") for name in ("input_ids", "labels")},
}


def write(folder: Path, kind: str, columns: dict[str, list]):
    """Save columns as a source of some kind, in several small chunks."""
    table = pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})
    if kind == "shuffled":
        order = np.random.default_rng(5).permutation(table.num_rows)
        kept = datasets.Dataset(table.take(np.argsort(order)))
        return kept.select(order)
    if kind == "jsonl":
        names, rows = columns.keys(), zip(*columns.values(), strict=True)
        return write_lines(folder / "source.jsonl", [dict(zip(names, values, strict=True)) for values in rows])
    return write_as(folder / {"memory": "table", "saved": "dataset"}.get(kind, f"source.{kind}"), table, rows=37)


KINDS = ["arrow", "parquet", "jsonl", "saved", "memory", "shuffled"]
