"""Damaged shards, with every kind of kept column and of rows, in packed datasets whose manifest is adapted to them."""

from __future__ import annotations

import datetime
import decimal
import functools
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tests.helpers.writing import write_ipc

ROWS = 20


def _values(kind: pa.DataType, values: list[object]) -> pa.Array:
    """Return a column with a value per document, every fifth null."""
    return pa.array([None if i % 5 == 4 else values[i % len(values)] for i in range(ROWS)], kind)


DAY = datetime.date(2020, 2, 29)
KEPT = {
    "string": _values(pa.string(), ["a", "", "text é"]),
    "large_string": _values(pa.large_string(), ["a", "bb"]),
    "binary": _values(pa.binary(), [b"a", b"\xff\0"]),
    "large_binary": _values(pa.large_binary(), [b"a"]),
    "fixed_binary": _values(pa.binary(3), [b"abc"]),
    "bool": _values(pa.bool_(), [True, False]),
    "int8": _values(pa.int8(), [1, -2]),
    "uint64": pa.array(range(ROWS), pa.uint64()),
    "float64": pa.array(range(ROWS), pa.float64()),
    "date32": _values(pa.date32(), [DAY]),
    "timestamp": _values(pa.timestamp("ns", "Europe/Berlin"), [1]),
    "time64": _values(pa.time64("us"), [5]),
    "duration": _values(pa.duration("ms"), [5]),
    "decimal": _values(pa.decimal128(10, 2), [decimal.Decimal("1.25")]),
    "struct": _values(pa.struct([("x", pa.string()), ("day", pa.date32())]), [{"x": "y", "day": DAY}, {"x": None}]),
    "list": _values(pa.list_(pa.string()), [["a", "b"], []]),
    "large_list": _values(pa.large_list(pa.int8()), [[1, 2], []]),
    "fixed_list": _values(pa.list_(pa.int16(), 2), [[1, 2]]),
    "map": _values(pa.map_(pa.string(), pa.int32()), [[("a", 1)], []]),
    "dictionary": pa.array([f"source {i % 3}" for i in range(ROWS)]).dictionary_encode(),
}
"""Columns with a value per document, by name; `tokens`, with a value per token, is kept beside each."""


def pack_keeping(column: str, folder: Path) -> tuple[Path, Path]:
    """Pack a small source with a kept column into `folder/packed`; return (source, packed dataset)."""
    import packer

    tokens = [[7 * i + j for j in range((5 * i) % 7)] for i in range(ROWS)]
    table = pa.table({"input_ids": tokens, column: KEPT[column], "tokens": pa.array(tokens, pa.list_(pa.uint16()))})
    folder.mkdir(parents=True, exist_ok=True)
    write_ipc(folder / "a.arrow", table)
    options = {"max_len": 16, "keep": [column], "keep_tokens": ["tokens"], "shard_size": 400}
    packer.pack(folder / "a.arrow", folder / "packed", workers=1, sync=False, **options)
    return folder / "a.arrow", folder / "packed"


SETS = {
    "plain": {},
    "aligned": {"align": 4},
    "grouped": {"group_by": "topic", "keep": ["topic"]},
    "index": {"index_only": True, "align": 8},
}


def _tokens_of(document: int) -> list[int]:
    """Return the tokens of a document of a set; no two documents share one."""
    return [100 * document + place for place in range((document + 3) % 23 + 1)]


def make_set(folder: Path, name: str) -> tuple[Path, Path]:
    """Pack documents with a kept column; return the dataset and its source."""
    import packer

    folder.mkdir(parents=True, exist_ok=True)
    tokens = [_tokens_of(document) for document in range(57)]
    topics = pa.array([f"topic {document % 3}" for document in range(len(tokens))])
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32())), "topic": topics})
    source = folder / "rows.arrow"
    write_ipc(source, table)
    packer.pack(source, folder / "packed", max_len=16, shard_size="1KB", sync=False, **SETS[name])
    return folder / "packed", source


def writing_fault(folder: Path, source: Path) -> str | None:
    """Use a packed dataset in every way, and write from it; return what is wrong, as `reading_fault` does."""
    import packer

    if "index_only" in (folder / "manifest.json").read_text():
        return _outcome("load", lambda: _wrong_row(packer.load(folder, source=source)))
    fault = reading_fault(folder, source, with_report=False)
    out = folder.parent / f"{folder.name}-export"
    fault = _outcome("export", lambda: packer.export(folder, out, to="torchtune", sync=False)) or fault
    shutil.rmtree(out, ignore_errors=True)
    return fault


def _wrong_row(dataset) -> str | None:
    """Compare the rows of an index, or of what was made of it, with the documents that they name."""
    for number, row in enumerate(dataset):
        ends = row["seq_lengths"].cumsum() - row["seq_lengths"] + row["seq_tokens"]
        for document, start, length, end in zip(
            row["doc_ids"], row["doc_starts"], row["seq_tokens"], ends, strict=True
        ):
            found = row["input_ids"][end - length : end].tolist()
            if document >= 0 and found != _tokens_of(document)[start:][:length]:
                return f"row {number} has {found} of document {document}"
    return None


def _outcome(name: str, use: Callable[[], object]) -> str | None:
    """Do something; return what is wrong if there is neither a result nor an error of one line, or if it says so."""
    import packer

    try:
        found = use()
    except packer.PackerError as error:
        return f"{name}: the message is no line: {error}" if "\n" in str(error) or len(str(error)) > 2000 else None
    except Exception as error:
        is_named = isinstance(error, IndexError) and str(error).startswith("row ")
        return None if is_named else f"{name}: {traceback.format_exc()}"
    return f"{name}: {found}" if isinstance(found, str) else None


def reading_fault(folder: Path, source: Path, *, with_report: bool = True) -> str | None:
    """Use a packed dataset in every way; return any outcome that is neither a result nor a one-line error, or None."""
    import packer
    from packer.pipeline.collect_figures import packed_figures
    from packer.report.page import render_page

    def show(number: int) -> None:
        str(packer.show(folder, number))

    def export(target: str) -> None:
        packer.export(folder, folder.parent / f"{folder.name}-{target}", to=target, workers=1, sync=False)

    uses: dict[str, Callable[[], object]] = {
        "verify": lambda: list(packer.verify(folder)),
        "verify --source": lambda: list(packer.verify(folder, source)),
        "stats": lambda: packed_figures(folder),
        "load": lambda: list(packer.load(folder)),
        **{f"show {number}": functools.partial(show, number) for number in range(6)},
        **{f"export {target}": functools.partial(export, target) for target in ("parquet", "torchtune")},
    }
    if with_report:
        uses["stats --report"] = lambda: len(render_page(packed_figures(folder, for_report=True)))
    for name, use in uses.items():
        if (fault := _outcome(name, use)) is not None:
            return fault
    for target in ("parquet", "torchtune"):
        shutil.rmtree(folder.parent / f"{folder.name}-{target}", ignore_errors=True)
    return None
