"""What `tests/test_refusals.py` shares with other tests."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.writing import write_ipc


def save(path: Path, content: object) -> None:
    """Write text, bytes, records or a table, as the path's suffix says; a table is compressed in `*.zstd.arrow`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        content = "".join(json.dumps(record) + "\n" for record in content)
    if isinstance(content, dict):
        content = pa.table(content)
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    if isinstance(content, bytes):
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    elif path.suffix == ".parquet":
        pq.write_table(content, path)
    elif path.suffix == ".jsonl":
        save(path, content.to_pylist())
    else:
        compression = "zstd" if ".zstd" in path.suffixes else None
        write_ipc(path, content, stream=path.suffix != ".feather", compression=compression, rows=2)


def table(name: str, documents: list, labels: list | None = None, *, kind: pa.DataType | None = None) -> object:
    """Documents as a table, or as text for files of JSON lines."""
    columns = {"input_ids": pa.array(documents, kind or pa.list_(pa.int64()))}
    if labels is not None:
        columns["labels"] = pa.array(labels, pa.list_(pa.int64()))
    content = pa.table(columns)
    return "".join(json.dumps(row) + "\n" for row in content.to_pylist()) if "jsonl" in name else content
