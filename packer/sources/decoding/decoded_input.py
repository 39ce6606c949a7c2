"""The input of all formats that must be decoded: blocks of a reader become documents, which then pass through steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import TypeAlias

import pyarrow as pa

from packer.sources.decoding.decode_pool import DecodePool, pool_or_new
from packer.sources.documents import Batch, Columns, DecodedSize, DocumentError, Input, Places, SourceFile
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.readers.format_reader import ListDecoder, Reader
from packer.stores import AnyPath

Step: TypeAlias = Callable[[Batch], Batch]
"""A check or change of a batch of one chunk; raises a DocumentError with the index of the document in the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedInput(Input):
    """A file, or a piece of one, whose documents are decoded each time they are read."""

    reader: Reader
    needed: tuple[str, ...]
    """Columns to read."""

    kept: tuple[str, ...]
    """Columns among them that are kept as they are."""

    start: Callable[[Reader], ListDecoder]
    """Function that returns what decodes the blocks of a reader in one pass; can be pickled."""

    is_slow: bool
    """Whether blocks are worth decoding ahead in several threads, although the results wait in memory."""

    has_labels: bool | None
    """Whether the documents have labels after all steps; None if there are no documents."""

    steps: tuple[Step, ...] = ()
    """What each batch passes through, in order."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""
        return self.reader.file

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""
        return self.reader.path

    @property
    def rows(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        return self.reader.rows

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of the documents once decoded, or slightly more; None if it is known only after reading."""
        tokens = self.reader.token_count
        return None if tokens is None else DecodedSize.of(tokens, self.rows or 0, has_labels=bool(self.has_labels))

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns; empty if the file has no schema or no documents."""
        fields = self.reader.fields
        if not isinstance(fields, pa.Schema) or self.rows == 0:
            return {}
        return {name: fields.field(name).type for name in self.kept}

    @property
    def places(self) -> Places:
        """Locations of the documents, for messages."""
        return self.reader.places

    def cut(self, size: int) -> Sequence[Input]:
        """Cut into the pieces of the reader."""
        return [replace(self, reader=piece) for piece in self.reader.cut(size)]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, one `Batch` of one chunk per block; blocks are parsed in parallel.

        Raises:
            DocumentError: a document is invalid.
        """
        decode = self.start(self.reader)

        def documents_of(block: tuple[object, int]) -> Batch:
            batch = decode(block)
            for step in self.steps:
                batch = step(batch)
            return batch

        blocks = self.reader.blocks(self.needed)
        if not self.is_slow:
            yield from _numbered(map(documents_of, blocks))
            return
        with pool_or_new(pool) as working, closing(working.in_order(documents_of, blocks)) as results:
            yield from _numbered(results)


def _numbered(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches; errors, which have the index of a document in its batch, get that in the input."""
    row = 0
    try:
        for batch in batches:
            yield batch
            row += sum(map(len, batch.input_ids))
    except DocumentError as fault:
        raise fault.at(row + fault.row) from None


def decoded_lists(reader: Reader, columns: Columns, *, has_labels: bool | None, skips: bool = False) -> DecodedInput:
    """Return the token lists of a reader as an input.

    Args:
        reader: the reader; one of a format with a schema has decoded its blocks when they are read.
        columns: the columns to read.
        has_labels: whether the file has labels; None if it has no documents.
        skips: reject records that cannot be parsed, with an empty document in the place of each.
    """
    wanted = columns.wanted(has_labels=bool(has_labels))
    return DecodedInput(
        reader=reader,
        needed=tuple(dict.fromkeys(wanted)),
        kept=columns.extra,
        start=methodcaller("lists", columns, has_labels=bool(has_labels), skips=skips),
        is_slow=not isinstance(reader.fields, pa.Schema),
        has_labels=has_labels,
    )


def with_step(input_: Input, step: Step, columns: Columns, *, has_labels: bool | None) -> DecodedInput:
    """Return an input whose batches also pass through a step; a mapped one is decoded for it.

    Args:
        input_: the input.
        step: the last step.
        columns: columns to read of a mapped input.
        has_labels: whether there are labels after the step.
    """
    if isinstance(input_, MappedLists):
        input_ = decoded_lists(input_, columns, has_labels=input_.has_labels)
    assert isinstance(input_, DecodedInput), input_
    return replace(input_, steps=(*input_.steps, step), has_labels=has_labels)
