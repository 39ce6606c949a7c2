"""Plain text files: each file is one document, in the column `text`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packer.errors import PackerError
from packer.inputs.document_errors import DocumentError, reading
from packer.inputs.documents import SourceFile
from packer.inputs.file_access import decompressed, open_stream
from packer.inputs.format_reader import Reader, reject
from packer.stores import AnyPath

COLUMN = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText(Reader):
    """A file whose whole content is one document."""

    file: SourceFile
    path: AnyPath
    fields: Mapping[str, str] = field(default_factory=lambda: {COLUMN: ""})
    rows: int = 1

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        """Yield the content of the file."""
        with reading(self.file.name), open_stream(self.path) as file:
            yield decompressed(self.path, file).read(), self.file.bytes

    def records(
        self, block: bytes, columns: Sequence[str], rejected: list[DocumentError] | None = None
    ) -> list[dict[str, str]]:
        """Decode the content, without a byte order mark."""
        try:
            return [{COLUMN: block.decode("utf-8-sig")}]
        except UnicodeDecodeError as error:
            message = f"invalid UTF-8 at byte {error.start}; write the file as UTF-8"
            reject(DocumentError(0, message, reason="unreadable"), rejected)
            return [{}]

    def require(self, columns: Sequence[str]) -> None:
        """Check that no other column is asked for."""
        for column in columns:
            if column != COLUMN:
                raise PackerError(f"{self.file.name}: a text file has no column '{column}': leave it out")


def open_records(path: AnyPath, name: str) -> PlainText:
    """Open a text file, without reading it."""
    with reading(name):
        return PlainText(file=SourceFile(name=name, bytes=path.stat().st_size), path=path)


def column_names(path: AnyPath, name: str, usable: str | None = None) -> list[str]:
    """Return the name of the only column."""
    return [COLUMN]
