"""Formats of input files: how to recognize each, and the functions that open it.

`FORMATS` is the only registry. A new format is a module with three functions and an entry here; the module is imported
on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from packer.errors import PackerError
from packer.sources.documents import reading
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.sources.documents import Columns, Input
    from packer.sources.text.text_records import RecordReader

TokensOpener: TypeAlias = "Callable[[AnyPath, str, Columns], Input]"
NamesReader: TypeAlias = Callable[[AnyPath, str], list[str]]
UsableNamesReader: TypeAlias = Callable[[AnyPath, str, str], list[str]]
RecordsOpener: TypeAlias = "Callable[[AnyPath, str], RecordReader]"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """A format of input files: `FORMATS["parquet"].open_tokens(path, "a.parquet", columns).rows`.

    The functions take the path of a file and its name in messages and in the manifest. They raise a `PackerError` if
    the file cannot be read, and a `SourceError` if it is truncated or corrupt.
    """

    title: str
    """Name in messages."""

    endings: tuple[str, ...]
    """Endings of file names, such as ".parquet". Other files in a folder are ignored."""

    compressed: tuple[str, ...] = ()
    """Endings that compressed files add, such as ".gz"."""

    magic: tuple[bytes, ...] = ()
    """Possible first bytes of a file; empty if files are recognized by their names alone."""

    alone: bool = False
    """Whether files in a folder are read only if the folder has no files of other formats; they may be mere notes."""

    open_tokens: TokensOpener
    """Opens a file of tokenized documents with some columns; raises a `PackerError` if one is missing."""

    column_names: NamesReader
    """Returns the names of the columns at the beginning of the file."""

    open_records: RecordsOpener
    """Opens a file of text records, to be tokenized."""

    open_usable: TokensOpener | None = None
    """Like `open_tokens`, for `--on-error skip`; None if every record of an undamaged file can be parsed."""

    usable_names: UsableNamesReader | None = None
    """Like `column_names`, for `--on-error skip`, given a column that a record must have; None as for `open_usable`."""

    @property
    def all_endings(self) -> tuple[str, ...]:
        """All endings, of plain and compressed files."""
        return tuple(ending + after for ending in self.endings for after in ("", *self.compressed))


def _in_file(module: str, function: str) -> Callable[..., Any]:
    """Make a function that imports its module on first use."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"packer.sources.{module}"), function)(*arguments)

    return call


FORMATS: dict[str, InputFormat] = {
    "arrow": InputFormat(
        title="Arrow",
        endings=(".arrow", ".ipc", ".feather"),
        magic=(b"ARROW1", b"\xff\xff\xff\xff"),  # of a file, and of a stream
        open_tokens=_in_file("mapped.ipc", "open_ipc"),
        column_names=_in_file("mapped.ipc", "column_names"),
        open_records=_in_file("text.arrow_records", "open_arrow_records"),
    ),
    "parquet": InputFormat(
        title="Parquet",
        endings=(".parquet",),
        magic=(b"PAR1",),
        open_tokens=_in_file("parquet", "open_parquet"),
        column_names=_in_file("parquet", "column_names"),
        open_records=_in_file("text.parquet_records", "open_parquet_records"),
    ),
    "jsonl": InputFormat(
        title="JSON",
        endings=(".jsonl", ".ndjson", ".json"),
        compressed=(".gz", ".zst"),
        open_tokens=_in_file("json_lines.jsonl", "open_json_lines"),
        column_names=_in_file("json_lines.jsonl", "column_names"),
        open_records=_in_file("text.json_records", "open_json_records"),
        open_usable=_in_file("json_lines.jsonl", "open_usable_lines"),
        usable_names=_in_file("json_lines.jsonl", "usable_names"),
    ),
    "csv": InputFormat(
        title="CSV",
        endings=(".csv",),
        compressed=(".gz", ".zst"),
        alone=True,
        open_tokens=_in_file("text.csv_records", "refuse_tokens"),
        column_names=_in_file("text.csv_records", "column_names"),
        open_records=_in_file("text.csv_records", "open_csv_records"),
    ),
    "text": InputFormat(
        title="text",
        endings=(".txt",),
        compressed=(".gz", ".zst"),
        alone=True,
        open_tokens=_in_file("text.text_files", "refuse_tokens"),
        column_names=_in_file("text.text_files", "column_names"),
        open_records=_in_file("text.text_files", "open_plain_text"),
    ),
}
"""All formats by name."""


def ending_of(name: str) -> str:
    """Return the known ending of a file name, such as ".jsonl.gz"; empty if it has none."""
    endings = (ending for each in FORMATS.values() for ending in each.all_endings if name.endswith(ending))
    return max(endings, key=len, default="")


def format_by_name(name: str) -> InputFormat | None:
    """Return the format of a file by the ending of its name; None if it has no known ending."""
    ending = ending_of(name)
    return next((each for each in FORMATS.values() if ending in each.all_endings), None)


def format_of(path: AnyPath, name: str) -> InputFormat:
    """Return the format of a file.

    The first bytes decide. The name decides for formats without characteristic first bytes, and for files that begin
    like no format.

    Args:
        path: the file.
        name: its name in messages.

    Raises:
        PackerError: the format is unknown, or the file cannot be read.
    """
    by_name = format_by_name(path.name)
    if by_name is not None and not by_name.magic:
        return by_name
    longest = max(len(magic) for each in FORMATS.values() for magic in each.magic)
    with reading(name), path.open("rb") as file:
        start = file.read(longest)
    by_content = next((each for each in FORMATS.values() if each.magic and start.startswith(each.magic)), None)
    found = by_content or by_name
    if found is None:
        raise PackerError(f"{name}: unknown format (it begins with {start!r}); supported formats are {known_formats()}")
    return found


def known_formats() -> str:
    """Return all formats with their endings, for a message."""
    shown = []
    for each in FORMATS.values():
        also = f", also {' '.join(each.compressed)}" if each.compressed else ""
        shown.append(f"{each.title} ({' '.join(each.endings)}{also})")
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
