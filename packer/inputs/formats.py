"""Formats of input files: how to recognize each, and the module that reads it.

`FORMATS` is the only registry. A new format is a module with three functions and an entry here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from packer.errors import PackerError
from packer.inputs.document_errors import reading
from packer.inputs.documents import Columns, Input
from packer.inputs.format_reader import Reader
from packer.stores import AnyPath


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """A format of input files: `FORMATS["parquet"].open_lists(path, "a.parquet", columns).rows`.

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

    no_lists: str = ""
    """Why files hold no lists of tokens, for a message; empty if they may."""

    module: str
    """Name of the module with the functions `open_records`, `column_names` and, for lists of tokens, `open_lists`.

    It is imported on first use.
    """

    @property
    def all_endings(self) -> tuple[str, ...]:
        """All endings, of plain and compressed files."""
        return tuple(ending + after for ending in self.endings for after in ("", *self.compressed))

    def open_lists(self, path: AnyPath, name: str, columns: Columns, *, skips: bool = False) -> Input:
        """Open a file of token lists.

        Args:
            path: the file.
            name: its name.
            columns: the columns to read.
            skips: reject records that cannot be parsed.

        Raises:
            PackerError: a column is missing, or the format holds no lists.
        """
        if self.no_lists:
            raise PackerError(f"{name}: {self.no_lists}: set --tokenizer, or give another format")
        opened: Input = import_module(self.module).open_lists(path, name, columns, skips=skips)
        return opened

    def open_records(self, path: AnyPath, name: str) -> Reader:
        """Open a file of other records: text, or numbers."""
        reader: Reader = import_module(self.module).open_records(path, name)
        return reader

    def column_names(self, path: AnyPath, name: str, usable: str | None = None) -> list[str]:
        """Return the names of the columns at the beginning of the file.

        Args:
            path: the file.
            name: its name.
            usable: column that a record must have to count, if records that cannot be used are rejected.
        """
        names: list[str] = import_module(self.module).column_names(path, name, usable)
        return names


_READERS = "packer.inputs"

FORMATS: dict[str, InputFormat] = {
    "arrow": InputFormat(
        title="Arrow",
        endings=(".arrow", ".ipc", ".feather"),
        magic=(b"ARROW1", b"\xff\xff\xff\xff"),  # of a file, and of a stream
        module=f"{_READERS}.arrow_files",
    ),
    "parquet": InputFormat(title="Parquet", endings=(".parquet",), magic=(b"PAR1",), module=f"{_READERS}.parquet"),
    "jsonl": InputFormat(
        title="JSON",
        endings=(".jsonl", ".ndjson", ".json"),
        compressed=(".gz", ".zst"),
        module=f"{_READERS}.json_files",
    ),
    "csv": InputFormat(
        title="CSV",
        endings=(".csv",),
        compressed=(".gz", ".zst"),
        alone=True,
        no_lists="CSV holds text, not lists of tokens",
        module=f"{_READERS}.csv_files",
    ),
    "text": InputFormat(
        title="text",
        endings=(".txt",),
        compressed=(".gz", ".zst"),
        alone=True,
        no_lists="a text file holds no tokens",
        module=f"{_READERS}.text_files",
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
    like no format. A PackerError is raised if the format is unknown, or the file cannot be read.
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
