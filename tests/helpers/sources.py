"""What `tests/test_sources.py` shares with other tests."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.column_names import NO_LOSS
from packer.sources.source import Source, TokenTable, read_documents
from packer.sources.spill import spill_source
from packer.token_memory.token_column import Spans, TokenColumn, gather
from tests.helpers.writing import write_ipc
from tests.helpers.zstd import zstd

DOCUMENTS = [[5, 6, 7], [], [1], [2**31 - 1, 0], list(range(50)), [9, 9]]


def lists_of(column: TokenColumn, table: TokenTable) -> list[list[int]]:
    lengths = table.lengths.astype(np.int64)
    lists = np.arange(len(lengths)) if table.lists is None else table.lists.astype(np.int64)
    places = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    out = np.full(int(lengths.sum()), -7, np.int32)
    assert gather(column.addresses, Spans(lists, np.zeros_like(lengths), lengths, places[:-1]), NO_LOSS, out) == -1
    return [out[start:end].tolist() for start, end in pairwise(places)]


def read_whole(source: Source) -> tuple[list[list[int]], list[list[int]] | None]:
    """Return all documents and labels, read through `Source.table`."""
    table = source.table(read_documents(source, hold_lengths=True).lengths)
    labels = lists_of(table.labels, table) if table.labels is not None else None
    return lists_of(table.input_ids, table), labels


def read_decoded(source: Source) -> tuple[list[list[int]], list[list[int]] | None]:
    """Return all documents and labels, after files that cannot be mapped are decoded."""
    with TemporaryDirectory() as folder:
        return read_whole(spill_source(source, Path(folder) / "decoded"))


def arrow_table(documents, labels=None, list_type=None) -> pa.Table:
    list_type = list_type or pa.list_(pa.int32())
    columns = {"text": pa.array(["x" * len(d) for d in documents]), "input_ids": pa.array(documents, list_type)}
    if labels is not None:
        columns["labels"] = pa.array(labels, pa.list_(pa.int64()))
    return pa.table(columns)


def json_text(documents, labels=None) -> bytes:
    records = [{"id": i, "input_ids": d} for i, d in enumerate(documents)]
    for record, values in zip(records, labels or [], strict=False):
        record["labels"] = values
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write(path: Path, kind: str, documents, labels=None) -> Path:
    table = arrow_table(documents, labels)
    match kind:
        case "stream":
            write_ipc(path := path.with_suffix(".arrow"), table, rows=2)
        case "file":
            write_ipc(path := path.with_suffix(".arrow"), table, rows=2, stream=False)
        case "stream-zstd":
            write_ipc(path := path.with_suffix(".arrow"), table, rows=2, compression="zstd")
        case "file-lz4":
            write_ipc(path := path.with_suffix(".feather"), table, rows=2, stream=False, compression="lz4")
        case "parquet":
            pq.write_table(table, path := path.with_suffix(".parquet"), row_group_size=3)
        case "jsonl":
            (path := path.with_suffix(".jsonl")).write_bytes(json_text(documents, labels))
        case "gz":
            (path := path.with_suffix(".json.gz")).write_bytes(gzip.compress(json_text(documents, labels)))
        case "zst":
            text = zstd.compress(json_text(documents, labels))
            (path := path.with_suffix(".ndjson.zst")).write_bytes(text)
        case "saved":
            datasets.Dataset(table.select([n for n in table.column_names if n != "text"])).save_to_disk(path)
    return path


KINDS = ["stream", "file", "stream-zstd", "file-lz4", "parquet", "jsonl", "gz", "zst", "saved"]


MAPPED = {"stream", "file", "saved"}
