"""Hypothesis strategies for small sources and options to pack them with, in every valid combination."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import packer
from packer.errors import SourceError
from tests.helpers.writing import write_ipc

TOKEN_BYTES = 8  # a token and its label


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """A source, and the options to pack it with."""

    columns: dict[str, list]
    """Columns of the source."""

    kind: str
    """Format in which the source is saved."""

    options: dict[str, Any]
    """Options of `packer.pack`."""

    def write(self, folder: Path) -> Path:
        """Save the source."""
        folder.mkdir(parents=True, exist_ok=True)
        return write(folder / f"rows.{self.kind}", self.columns)

    def pack(self, path: Path, out: Path) -> packer.Manifest | None:
        """Pack the source; return None if nothing is left to pack, or a document is too long for the options."""
        try:
            return packer.pack(path, out, sync=False, workers=1, **self.options)
        except SourceError as error:
            reasons = "nothing to pack", "is null in every", "longer)", "empty dataset", "is trained"
            if not any(reason in str(error) for reason in reasons):
                raise
            return None

    def verify(self, path: Path, out: Path) -> list[str]:
        """Return the faults that `packer verify --source` finds."""
        return list(packer.verify(out, path))


def write(path: Path, columns: dict[str, list]) -> Path:
    """Save columns as Arrow, Parquet or JSON lines."""
    kinds = {"source": pa.string()}
    table = pa.table({name: pa.array(rows, kinds.get(name, pa.list_(pa.int32()))) for name, rows in columns.items()})
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=5)
    else:
        write_ipc(path, table, rows=4)
    return path


@st.composite
def labelled(draw, lengths: list[int], trained: float, first_token: int) -> dict[str, list]:
    """Return documents of distinct tokens, and labels of which about the share `trained` are trained."""
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    ends = np.cumsum([first_token, *lengths])
    tokens = [list(range(end - length, end)) for length, end in zip(lengths, ends[1:].tolist(), strict=True)]
    labels = [[token if random.random() < trained else -100 for token in ids] for ids in tokens]
    return {"input_ids": tokens, "labels": labels}


@st.composite
def packings(draw) -> Packing:
    """Draw a packing."""
    align = draw(st.sampled_from([1, 1, 2, 4]))
    max_len = align * draw(st.integers(3, 9))
    longest = max_len * draw(st.integers(1, 4))
    algorithm = draw(st.sampled_from(["auto", "bfd", "ffd", "optimal", "sequential", "wrapped"]))
    long = draw(st.sampled_from(["split", "truncate", "drop"]))
    options = {
        "max_len": max_len,
        "algorithm": algorithm,
        "long": long,
        "seed": draw(st.integers(0, 3)),
        "max_segments": draw(st.sampled_from([None, 2, 3])),
        "shard_size": TOKEN_BYTES * max_len * draw(st.integers(1, 4)),
        "untrained": draw(st.sampled_from(["keep-all", "drop"])),
    }
    if algorithm != "wrapped":
        options["align"] = align
    if algorithm != "wrapped" and long == "split":
        options["split_at"] = draw(st.sampled_from(["tokens", "exchanges", None]))
    if algorithm not in ("sequential", "wrapped") and draw(st.booleans()):
        options["group_by"] = "source"
        options["keep"] = draw(st.sampled_from([[], ["source"]]))
    trained = draw(st.sampled_from([0.05, 0.3, 1.0]))
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=12))
    columns = draw(labelled(lengths, trained, first_token=1))
    if "group_by" in options:
        columns["source"] = draw(
            st.lists(st.sampled_from(["a", "b", "c", None]), min_size=len(lengths), max_size=len(lengths))
        )
    if options.get("split_at") == "exchanges" or draw(st.booleans()):
        step = draw(st.integers(1, 2 * max_len))
        columns["exchange_starts"] = [list(range(0, length, step)) for length in lengths]
    has_types = set(columns) <= {"input_ids", "labels"}  # the first line may have nulls in other columns
    kind = draw(st.sampled_from(["arrow", "parquet", "jsonl"] if has_types else ["arrow", "parquet"]))
    return Packing(columns=columns, kind=kind, options=options)
