"""A small packed dataset, and the expected content of its rows.

The token of document d at place p is `1000 * d + p + 1`, so that every token shows where it comes from; 0 is padding.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import packer
from packer.column_names import NO_LOSS, PADDING
from packer.shards.files import MANIFEST, all_shard_names, hash_file
from packer.shards.manifest import checksum, json_of
from tests.helpers.writing import write_ipc

MAX_LEN = 12
LENGTHS = [5, 12, 1, 30, 7, 3, 3, 9, 1, 2, 11, 4, 6, 8, 10, 5, 5, 2]


def tokens_of(document: int, length: int) -> list[int]:
    return [1000 * document + place + 1 for place in range(length)]


def labels_of(document: int, length: int) -> list[int]:
    """Return labels that mask every third token, but not the first token."""
    return [NO_LOSS if place % 3 == 2 else token for place, token in enumerate(tokens_of(document, length))]


def write_source(path: Path, lengths, *, labels=True) -> Path:
    documents = list(enumerate(lengths))
    columns = {"input_ids": pa.array([tokens_of(*document) for document in documents], pa.list_(pa.int32()))}
    if labels:
        columns["labels"] = pa.array([labels_of(*document) for document in documents], pa.list_(pa.int32()))
    return write_ipc(path, pa.table(columns))


def make(folder: Path, lengths=LENGTHS, **options) -> Path:
    """Pack documents of these lengths in a folder, which is made; return the packed dataset.

    Documents have labels unless the rows are to have none, or `source_labels` says so.
    """
    folder.mkdir(exist_ok=True)
    has_labels = options.pop("source_labels", options.get("labels", True))
    source = write_source(folder / "source.arrow", lengths, labels=has_labels)
    out = folder / "packed"
    packer.pack(source, out, **{"max_len": MAX_LEN, "add_column": ["position_ids"], "sync": False, **options})
    return out


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest, and update its checksum as an attacker would."""
    content = json.loads((folder / MANIFEST).read_bytes())
    edit(content)
    seal(folder, content)


def rewrite_shards(folder: Path, change: Callable[[pa.Table], pa.Table] = lambda table: table) -> None:
    """Rewrite every shard of a dataset, and fit the manifest to them."""
    for path in sorted(folder.glob("*.arrow")):
        table = change(pa.ipc.open_stream(path.read_bytes()).read_all())
        write_ipc(path, table)
    fit_manifest(folder)


def fit_manifest(folder: Path) -> None:
    """Update sizes and hashes of shards in the manifest, so that no hash reveals a change."""

    def fit(content: dict[str, Any]) -> None:
        paths = [folder / name for name in all_shard_names(len(content["shards"]["rows"]))]
        content["shards"].update(
            bytes=[path.stat().st_size for path in paths], xxh3_128=[hash_file(path) for path in paths]
        )

    edit_manifest(folder, fit)


def seal(folder: Path, content: dict[str, Any]) -> None:
    """Write a manifest with this content and a matching checksum."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    (folder / MANIFEST).write_bytes(json_of({**content, "checksum": checksum(content)}))


def rows_on_disk(folder: Path, pattern: str = "*.arrow") -> list[dict[str, list[int]]]:
    """Read the rows of shards as lists, with only pyarrow."""
    rows = []
    for name in sorted(path.name for path in folder.glob(pattern)):
        with pa.memory_map(str(folder / name)) as mapped:
            rows += pa.ipc.open_stream(mapped).read_all().to_pylist()
    return rows


def as_lists(row) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in row.items()}


def segments_of(row) -> list[tuple[int, int, int]]:
    """Return (document, start, length) of the segments of a row, without padding."""
    columns = (row["doc_ids"].tolist(), row["doc_starts"].tolist(), row["seq_lengths"].tolist())
    return [segment for segment in zip(*columns, strict=True) if segment[0] != PADDING]


def heads(batch) -> list[int]:
    """Return the first token of every segment of a batch, which identifies the segment."""
    return batch["input_ids"][0, batch["cu_seq_lens_q"][:-1]].tolist()
