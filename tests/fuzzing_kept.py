"""Damaged shards with a kept column, in packed datasets whose manifest is adapted to the damage."""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

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
    with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as stream:
        stream.write_table(table)
    options = {"max_len": 16, "keep": [column], "keep_tokens": ["tokens"], "shard_size": 400}
    packer.pack(folder / "a.arrow", folder / "packed", workers=1, sync=False, **options)
    return folder / "a.arrow", folder / "packed"


def make_manifest_fit(folder: Path, name: str) -> None:
    """Update the size and hash of a file in the manifest, and the checksum of the manifest."""
    from packer.shards.files import hash_file
    from packer.shards.manifest import checksum

    content = json.loads((folder / "manifest.json").read_bytes())
    del content["checksum"]
    for shard in content["shards"]:
        if shard["file"] == name:
            shard.update(bytes=(folder / name).stat().st_size, xxh3_128=hash_file(folder / name))
    content["checksum"] = checksum(content)
    (folder / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def reading_fault(folder: Path, source: Path, *, with_report: bool = True) -> str | None:
    """Use a packed dataset in every way; return any outcome that is neither a result nor a one-line error, or None."""
    import packer
    from packer.pipeline import packed_figures
    from packer.pipeline.statistics import packed_statistics
    from packer.report import render_row, segments_of
    from packer.report.html import render_page

    def show(number: int) -> None:
        dataset = packer.load(folder)
        options = dataset.manifest.options
        render_row(segments_of(dataset[number], kept=options.kept, kept_tokens=options.keep_tokens))

    def export(target: str) -> None:
        packer.export(folder, folder.parent / f"{folder.name}-{target}", to=target, workers=1, sync=False)

    uses: dict[str, Callable[[], object]] = {
        "verify": lambda: list(packer.verify(folder)),
        "verify --source": lambda: list(packer.verify(folder, source)),
        "stats": lambda: packed_statistics(folder),
        "load": lambda: list(packer.load(folder)),
        **{f"show {number}": functools.partial(show, number) for number in range(6)},
        **{f"export {target}": functools.partial(export, target) for target in ("parquet", "torchtitan")},
    }
    if with_report:
        uses["stats --report"] = lambda: render_page(packed_figures(folder))
    for name, use in uses.items():
        try:
            use()
        except packer.PackerError as error:
            if "\n" in str(error) or len(str(error)) > 2000:
                return f"{name}: the message is no line: {error}"
        except IndexError as error:
            if not str(error).startswith("row "):
                return f"{name}: {traceback.format_exc()}"
        except Exception:
            return f"{name}: {traceback.format_exc()}"
    for target in ("parquet", "torchtitan"):
        shutil.rmtree(folder.parent / f"{folder.name}-{target}", ignore_errors=True)
    return None
