"""Inputs, and the batches of documents that they yield, as Arrow lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
from numpy.typing import NDArray

from packer.engine import DecodePool
from packer.facts import Reason, TextIdentity
from packer.inputs.document_errors import reading
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.text import Encoder

TURN_STARTS = "turn_starts"
"""Column with the indices of the tokens that begin a turn of a chat: lists of integers, ascending.

When packer tokenizes a chat, a token that spans the border of two turns belongs to the later one.
"""

ATTENTION = "attention_mask"
"""Column that is 1 at tokens and 0 at padding."""

MASKS = ("loss_mask", "completion_mask", "assistant_masks", ATTENTION)
"""Columns of 0 and 1 per token, as trainers and tokenizers write them. No loss where one of the first three is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file of a source, as named in the manifest."""

    name: str
    """Path relative to the source, with "/" between folders; never absolute."""

    bytes: int
    """Size of the original file, even if a decoded copy is read instead."""


class Columns(NamedTuple):
    """Names of the columns to read from every file."""

    input_ids: str
    labels: str
    extra: tuple[str, ...] = ()  # further columns to read, such as kept ones; every file must have them
    per_token: tuple[str, ...] = ()  # those of `extra` that hold a list with one value per token

    def wanted(self, *, has_labels: bool) -> tuple[str, ...]:
        """Return all columns to read, in order."""
        return (self.input_ids, *((self.labels,) if has_labels else ()), *self.extra)


COLUMNS = Columns("input_ids", "labels")
"""Columns of decoded streams, except for preference pairs; labels only if the source has them."""


def columns_of_side(role: str, extra: tuple[str, ...] = ()) -> Columns:
    """Return the columns of one side of preference pairs: `chosen_input_ids` and `chosen_labels` for "chosen"."""
    return Columns(f"{role}_input_ids", f"{role}_labels", extra)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenized:
    """Facts about a source of text."""

    identity: TextIdentity
    """Everything that shapes the tokens, for the manifest."""

    encoder: Encoder = field(compare=False)
    """What tokenizes."""

    fingerprint: str | None = None
    """Fingerprint of the content of a dataset in memory; None for files."""

    counts: Counter[str] = field(default_factory=Counter)
    """Sums of `Batch.counts`, made when the source is spilled or read."""


class DecodedSize(NamedTuple):
    """Size of documents decoded to lists of int32."""

    tokens: int
    bytes: int  # labels and offsets included

    @classmethod
    def of(cls, tokens: int, documents: int, *, has_labels: bool) -> DecodedSize:
        """Return the size of `documents` documents with `tokens` tokens in all."""
        return cls(tokens, 4 * (tokens + documents) * (1 + has_labels))


class Rejection(NamedTuple):
    """A record that cannot be used and is left out; an empty document takes its place."""

    row: int  # document of its batch
    reason: Reason
    message: str


class Batch(NamedTuple):
    """Consecutive documents of an input, unchecked; chunk i of every column holds the same documents."""

    input_ids: list[pa.Array]
    labels: list[pa.Array] | None
    done: int  # bytes of the file, or of the piece of it, read up to the end of this batch
    extra: dict[str, list[pa.Array]] = {}  # noqa: RUF012 (never changed)
    counts: Mapping[str, int] = {}  # of text: see `Encoded.counts`
    rejected: tuple[Rejection, ...] = ()  # ascending; always empty unless unusable records are left out
    differing: int | None = None  # of text: see `Encoded.differing_row`
    lines: bytes | None = None  # the lines that the batch was made of, if rejected ones are listed by line

    def per_token(self, columns: Columns) -> dict[str, list[pa.Array]]:
        """Return the extra columns that hold one value per token."""
        return {name: self.extra[name] for name in columns.per_token if name in self.extra}


class Places(Protocol):
    """Locations of the documents of an input, for messages and the list of rejected records; can be pickled."""

    def place(self, row: int) -> str:
        """Return the location of a document, such as "rows.jsonl line 18"."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Locations in a file whose documents are numbered, such as "rows.parquet row 17"."""

    name: str
    first_row: int = 0
    indices: NDArray[Any] | None = None
    """Index in the file of each document; None if they are in the order of the file."""

    def place(self, row: int) -> str:
        """Return the location of a document."""
        return f"{self.name} row {self.number(row)}"

    def number(self, row: int) -> int:
        """Return the number of a document in its file, counted from 0."""
        row += self.first_row
        return row if self.indices is None else int(self.indices[row])


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Locations of documents of which every record makes several."""

    records: Places
    """Locations of the records."""

    documents_each: int

    def place(self, row: int) -> str:
        """Return the location of a document."""
        return self.records.place(row // self.documents_each)


class InputFile(Protocol):
    """A file, a piece of one, or a dataset in memory. In dataclasses with `slots=True`, fields replace properties."""

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Number of records; None if it is known only after reading."""
        return None

    @property
    def places(self) -> Places:
        """Locations of the records, for messages; they stay the same when a decoded copy is read instead."""
        return RowPlaces(self.file.name)


class Input(InputFile, Protocol):
    """What yields documents: mapped (`MappedLists`), decoded (`DecodedInput`), or packed (`PackedDocuments`)."""

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None if the file has no documents."""

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of the documents once decoded, or slightly more; None if it is known only after reading."""
        return None

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns; empty if the file declares none."""
        return {}

    def cut(self, size: int) -> Sequence[Input]:
        """Cut an input that must be decoded into pieces that can be read in parallel.

        The pieces depend only on the file and on `size`. `file.bytes` of a piece is its share of the file.

        Args:
            size: approximate size of a piece, in bytes.
        """
        return (self,)

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, using bounded memory; a DocumentError if one is invalid.

        Blocks are decoded by a pool; None for a small one of its own.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Convert errors of reading the file, see `reading`."""
        return reading(self.file.name)

    def place(self, row: int) -> str:
        """Return the location of a document, such as "rows.jsonl line 18"."""
        return self.places.place(row)
