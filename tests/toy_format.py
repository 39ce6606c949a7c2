"""A toy format, as `FORMATS` expects one: after the line NUMBERS, each line of numbers is a document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from packer.inputs.documents import Batch, Columns, SourceFile
from packer.inputs.format_reader import DecodedInput, Reader, decoded_lists

NUMBERS = b"NUMBERS\n"


@dataclass(frozen=True, slots=True)
class NumberLines(Reader):
    file: SourceFile
    path: Path
    fields: Mapping[str, Any]

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[bytes, int]]:
        yield self.path.read_bytes().removeprefix(NUMBERS), self.file.bytes

    def records(self, block: bytes, columns: Sequence[str], rejected=None) -> list[dict[str, Any]]:
        return [{"text": line.decode()} for line in block.splitlines()]

    def lists(self, columns: Columns, *, has_labels: bool, skips: bool):
        def decode(block: tuple[bytes, int]) -> Batch:
            lines = [[int(number) for number in line.split()] for line in block[0].splitlines()]
            return Batch([pa.array(lines, pa.list_(pa.int64()))], None, block[1])

        return decode


def open_lists(path: Path, name: str, columns: Columns, *, skips: bool = False) -> DecodedInput:
    return decoded_lists(open_records(path, name), columns, has_labels=False)


def open_records(path: Path, name: str) -> NumberLines:
    return NumberLines(SourceFile(name=name, bytes=path.stat().st_size), path, {"text": ""})


def column_names(path: Path, name: str, usable: str | None = None) -> list[str]:
    return ["input_ids"]
