"""Damaged shards of an index: its rows are read from the source, where nothing beside the documents may be read."""

from __future__ import annotations

import shutil
from pathlib import Path

LENGTHS = [(5 * number) % 23 for number in range(40)]


def pack_index(write_source, folder: Path) -> tuple[Path, Path]:
    """Pack a small index; return (source, index)."""
    import packer

    source, _ = write_source("stream", _content(), folder)
    options = {"max_len": 16, "shard_size": 2048, "overlap": 2, "workers": 1, "sync": False}
    packer.pack(source, folder / "index", index_only=True, **options)
    return source, folder / "index"


def _content() -> bytes:
    import io

    import pyarrow as pa

    tokens = [[100 * number + place for place in range(length)] for number, length in enumerate(LENGTHS)]
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    return sink.getvalue()


def index_fault(index: Path, source: Path) -> str | None:
    """Read and materialize an index whose manifest fits its damaged shard; return what is wrong, or None."""
    import packer

    messages = []
    try:
        for number, row in enumerate(packer.load(index, source=source)):
            fault = _row_fault(row)
            if fault is not None:
                return f"row {number} of the index {fault}"
    except packer.PackerError as error:
        messages.append(str(error))
    made = index.with_name(f"{index.name}-made")
    try:
        packer.materialize(index, source, made, workers=1, sync=False)
    except packer.PackerError as error:
        messages.append(str(error))
    else:
        for number, row in enumerate(packer.load(made)):
            fault = _row_fault(row)
            if fault is not None:
                return f"row {number} of the copied dataset {fault}"
    shutil.rmtree(made, ignore_errors=True)
    return next((f"the message is no line: {text!r}" for text in messages if "\n" in text or len(text) > 2000), None)


def _row_fault(row) -> str | None:
    """Compare a row with the documents that it names."""
    place = 0
    columns = (row[name].tolist() for name in ("doc_ids", "doc_starts", "seq_lengths"))
    for document, start, length in zip(*columns, strict=True):
        found = row["input_ids"][place : place + length].tolist()
        if document < 0:
            expected = [0] * length
        elif document >= len(LENGTHS) or start + length > LENGTHS[document]:
            return f"has tokens {start} to {start + length} of document {document}"
        else:
            expected = [100 * document + start + at for at in range(length)]
        if found != expected:
            return f"has {found} where document {document} has {expected}"
        place += length
    return None if place == 16 else f"has {place} tokens"
