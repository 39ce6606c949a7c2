"""A toy format, as `FORMATS` expects one: after the line NUMBERS, each line of numbers is a document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packer.sources.documents import SourceFile
from packer.sources.format_reader import Reader

NUMBERS = b"NUMBERS\n"


@dataclass(frozen=True, slots=True)
class NumberLines(Reader):
    file: SourceFile
    fields: Mapping[str, Any]

    @classmethod
    def open(cls, file: SourceFile) -> "NumberLines":
        return cls(file, {"text": "", "input_ids": []})

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        yield self.path.read_bytes().removeprefix(NUMBERS), self.file.bytes

    def records(self, block: bytes, columns: Sequence[str]):
        return [{"text": line.decode(), "input_ids": [*map(int, line.split())]} for line in block.splitlines()], {}
