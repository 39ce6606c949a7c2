"""Formats of input files: how to recognize each format, and the class that reads it.

`FORMATS` is the only registry. A new format is a reader class and an entry here.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

from packer.errors import PackerError
from packer.sources.documents import Found, SourceFile, reading
from packer.sources.format_reader import CODECS, Reader
from packer.stores import AnyPath, RemotePath

SIDE_FILES = {"dataset_info.json", "dataset_infos.json", "config.json", "manifest.json", "state.json"}
SIDE_FILES |= {"dataset_dict.json", "_export.json"}
"""Files that are no data although their names end like data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """A format of input files: `FORMATS["parquet"].reader_class.open(path, "a.parquet").rows`."""

    title: str
    """Name in messages."""

    endings: tuple[str, ...]
    """Endings of file names, such as ".parquet". Other files in a folder are ignored."""

    compressed: tuple[str, ...] = ()
    """Endings that compressed files add, such as ".gz"."""

    magic: tuple[bytes, ...] = ()
    """Possible first bytes of a file; empty if files are recognized only by name."""

    alone: bool = False
    """Whether these files are read only in folders without other formats, where they are no mere notes."""

    reader: str
    """Module and name of the reader class, such as "packer.sources.parquet.ParquetReader"; imported on first use."""

    @property
    def all_endings(self) -> tuple[str, ...]:
        """All endings, of plain and compressed files."""
        return tuple(ending + after for ending in self.endings for after in ("", *self.compressed))

    @property
    def reader_class(self) -> type[Reader]:
        """Class whose method `open` opens a file."""
        module, name = self.reader.rsplit(".", 1)
        found: type[Reader] = getattr(import_module(module), name)
        return found


class _Codec(NamedTuple):
    """A compression of files."""

    name: str
    magic: bytes
    ending: str
    command: str
    """Command that decompresses it."""


_COMPRESSED = (
    _Codec("gzip", b"\x1f\x8b", ".gz", "gunzip"),
    _Codec("zstd", b"\x28\xb5\x2f\xfd", ".zst", "zstd -d"),
    _Codec("bzip2", b"BZh", ".bz2", "bunzip2"),
    _Codec("xz", b"\xfd7zXZ\x00", ".xz", "unxz"),
    _Codec("lz4", b"\x04\x22\x4d\x18", ".lz4", "unlz4"),
)
_LOOKED_AT = 18  # number of bytes: the size of a zstd header
_LARGEST_WINDOW = 1 << 27  # default limit of the zstd library, in bytes

FORMATS: dict[str, InputFormat] = {
    "arrow": InputFormat(
        title="Arrow",
        endings=(".arrow", ".ipc", ".feather"),
        magic=(b"ARROW1", b"\xff\xff\xff\xff"),  # of a file, and of a stream
        reader="packer.sources.arrow_files.ArrowReader",
    ),
    "parquet": InputFormat(
        title="Parquet", endings=(".parquet",), magic=(b"PAR1",), reader="packer.sources.parquet.ParquetReader"
    ),
    "jsonl": InputFormat(
        title="JSON",
        endings=(".jsonl", ".ndjson", ".json"),
        compressed=(*CODECS,),
        reader="packer.sources.json_files.JsonFile",
    ),
    "indexed": InputFormat(
        title="Megatron's index",
        endings=(".idx",),
        magic=(b"MMIDIDX",),
        alone=True,
        reader="packer.sources.token_files.IndexedReader",
    ),
    "datatrove": InputFormat(
        title="datatrove's tokens", endings=(".ds",), alone=True, reader="packer.sources.token_files.DatatroveReader"
    ),
    "array": InputFormat(
        title="bare arrays",
        endings=(".npy", ".bin"),
        magic=(b"\x93NUMPY",),
        alone=True,
        reader="packer.sources.token_files.BareArrayReader",
    ),
    "csv": InputFormat(
        title="CSV", endings=(".csv",), compressed=(*CODECS,), alone=True, reader="packer.sources.text_files.CsvFile"
    ),
    "text": InputFormat(
        title="text", endings=(".txt",), compressed=(*CODECS,), alone=True, reader="packer.sources.text_files.PlainText"
    ),
}


def ending_of(name: str) -> str:
    """Return the known ending of a file name, such as ".jsonl.gz", or an empty string."""
    endings = (ending for each in FORMATS.values() for ending in each.all_endings if name.endswith(ending))
    return max(endings, key=len, default="")


def format_by_name(name: str) -> InputFormat | None:
    """Return the format of a file by the ending of its name; None if it has no known ending."""
    return next((each for each in FORMATS.values() if name.endswith(each.all_endings)), None)


def _format_of(path: AnyPath, name: str) -> InputFormat:
    """Return the format of a file.

    The first bytes decide. The name decides for formats without characteristic first bytes, and for files whose first
    bytes match no format. Raises a PackerError if the format is unknown, or if the file cannot be read.
    """
    by_name = format_by_name(path.name)
    if by_name is not None and not by_name.magic and isinstance(path, RemotePath):  # saves a request per object
        return by_name
    with reading(name), path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    _refuse_compressed(start, path.name, name)
    if by_name is not None and not by_name.magic:
        return by_name
    by_content = next((each for each in FORMATS.values() if each.magic and start.startswith(each.magic)), None)
    found = by_content or by_name
    if found is None:
        begin = start[: max(len(magic) for each in FORMATS.values() for magic in each.magic)]
        raise PackerError(f"{name}: unknown format (it begins with {begin!r}); supported formats are {known_formats()}")
    return found


def _refuse_compressed(start: bytes, file_name: str, name: str) -> None:
    """Raise a PackerError for an unsupported compression, or for a file name without the ending of its compression."""
    codec = next((each for each in _COMPRESSED if start.startswith(each.magic)), None)
    if codec is None:
        return
    if codec.ending not in CODECS:
        raise PackerError(f"{name}: {codec.name} is not read; decompress it with `{codec.command}`")
    if not file_name.endswith(codec.ending):
        raise PackerError(
            f"{name}: compressed by {codec.name}, and its name does not say so; rename it to {file_name}{codec.ending}"
        )
    if format_by_name(file_name) is None:
        raise PackerError(f"{name}: only JSON, CSV and text are read compressed; decompress it with `{codec.command}`")
    window = _zstd_window(start) if codec.ending == ".zst" else 0
    if window > _LARGEST_WINDOW:
        raise PackerError(
            f"{name}: its zstd frames have a window of {window >> 20:,} MiB, and up to {_LARGEST_WINDOW >> 20} are "
            "read; decompress it with `zstd -d --long=31`"
        )


def _zstd_window(start: bytes) -> int:
    """Return the number of bytes of memory that the first zstd frame needs; see RFC 8878, section 3.1.1.1."""
    if len(start) < _LOOKED_AT:
        return 0
    descriptor, after = start[4], start[5:]
    if not descriptor & 0x20:  # several segments; a single one needs as much memory as its content
        return (1 << 10 + (after[0] >> 3)) // 8 * (8 + (after[0] & 7))
    after = after[(0, 1, 2, 4)[descriptor & 3] :]
    size = (1, 2, 4, 8)[descriptor >> 6]
    return int.from_bytes(after[:size], "little") + 256 * (size == 2)


def known_formats() -> str:
    """Return all formats with their endings, for a message."""
    shown = []
    for each in FORMATS.values():
        also = f", also {' '.join(each.compressed)}" if each.compressed else ""
        shown.append(f"{each.title} ({' '.join(each.endings)}{also})")
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def require_regular(path: AnyPath, name: str) -> None:
    """Raise a PackerError unless this is a regular file, which can be read more than once; links are followed.

    Pipes and devices are not opened: reading a pipe may block, and a device may never end. The path must be UTF-8,
    because Arrow and manifests store only UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise PackerError(f"{os.fsencode(str(path))!r}: the name is not UTF-8; rename it") from None
    with reading(name):
        if isinstance(path, RemotePath):
            path.stat()
            return
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or a socket"
        raise PackerError(
            f"{name}: {what}, where a file is expected that can be read more than once; write its content to a file"
        )


def is_data(name: str) -> bool:
    """Whether a file, judged by its name, is data and not a file next to data."""
    return bool(ending_of(name)) and name not in SIDE_FILES


def open_readers(found: Found) -> list[Reader]:
    """Open each file of a source, or its table, and find schemas or first records."""
    if found.table is not None:
        from packer.sources.arrow_files import ArrowReader

        return [ArrowReader.of_table(found.table, found.name)]

    def opened(file: SourceFile) -> Reader:
        kind = FORMATS["arrow"] if found.saved else _format_of(file.stored, file.name)
        return kind.reader_class.open(file)

    return found.each(opened, found.files)
