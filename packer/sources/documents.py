"""Documents as Arrow lists: what an input yields, and the checks that make it a table of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import PackerError, SourceError
from packer.facts import TextIdentity
from packer.gather import TokenColumn
from packer.sources.column_types import as_plain
from packer.sources.decode_pool import DecodePool
from packer.system_errors import shortage

if TYPE_CHECKING:
    from packer.sources.value_column import ValueColumn

LONGEST = 2**31 - 1
"""Tokens of the longest document that is taken; also the largest token id."""

TURN_STARTS = "turn_starts"
"""The column with the places where the turns of a chat begin: lists of token numbers, ascending.

Of chats that are tokenized here, a token that holds the end of one turn and the beginning of another belongs to the
latter.
"""

ATTENTION = "attention_mask"
"""1 at tokens, 0 at padding."""

MASKS = ("loss_mask", "completion_mask", "assistant_masks", ATTENTION)
"""Columns of 0 and 1 per token, as trainers and tokenizers write them; no label where any of the first three is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file of a source, as the manifest names it."""

    name: str
    """Path relative to the source, with "/" between folders; never absolute."""

    bytes: int
    """Size of the original file, also where a decoded copy is read in its place."""


class ListNumbers(Protocol):
    """The number of the list that each document is: an array, or what answers as one does."""

    def __getitem__(self, documents: NDArray[np.int64], /) -> NDArray[Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """A contiguous stretch of checked documents, in memory or memory-mapped.

    No list is null or holds a null, offsets are valid, labels are as long as input_ids. Gathering checks token values.
    """

    input_ids: TokenColumn
    """Lists of token ids."""

    labels: TokenColumn | None
    """Lists of labels, or None where the source has none."""

    lengths: NDArray[np.int32]
    """(documents,) tokens in each document."""

    rows: ListNumbers | None
    """Document i is list rows[i] of the columns; None: list i. An array, or what works the numbers out."""

    extra: Mapping[str, ValueColumn]
    """Other columns that were asked for, by name: one value per list."""

    first_document: int
    """Index of the first document in the whole source."""


class Columns(NamedTuple):
    """What to look for in every file."""

    input_ids: str
    labels: str
    extra: tuple[str, ...] = ()  # columns that are handed on beside the tokens; every file must have them
    per_token: tuple[str, ...] = ()  # those of them that hold lists of a value per token

    def wanted(self, *, has_labels: bool) -> tuple[str, ...]:
        """All columns to read, in order."""
        return (self.input_ids, *((self.labels,) if has_labels else ()), *self.extra)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenized:
    """What is known of a source whose documents are text, beside them."""

    identity: TextIdentity
    """What shapes the tokens; for the manifest."""

    fingerprint: str | None = None
    """Of a dataset in memory: another for other content."""

    straddling: int = 0
    """Documents in which a token holds characters of both what is trained and what is not; known once it is spilled."""

    untrained: int = 0
    """Documents with tokens, none of which is trained; known once it is spilled."""


class DecodedSize(NamedTuple):
    """What documents come to as lists of int32."""

    tokens: int
    bytes: int  # labels and offsets included

    @classmethod
    def of(cls, tokens: int, rows: int, *, has_labels: bool) -> DecodedSize:
        """The size of so many tokens in so many documents."""
        return cls(tokens, 4 * (tokens + rows) * (1 + has_labels))


class Batch(NamedTuple):
    """A stretch of an input's documents, not checked yet; chunk i of the labels belongs to chunk i of input_ids."""

    input_ids: list[pa.Array]
    labels: list[pa.Array] | None
    done: int  # bytes of the input's file, or of its piece, read when this batch ends
    extra: dict[str, list[pa.Array]] = {}  # noqa: RUF012 (never changed) chunk i of each belongs to chunk i of input_ids
    straddling: int = 0  # of text: documents in which a token holds characters of both what is trained and what is not
    untrained: int = 0  # of text: documents of which nothing is trained

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: Columns, done: int, *, has_labels: bool) -> Batch:
        """The batch of one record batch."""
        labels = [batch.column(columns.labels)] if has_labels else None
        return cls(
            [batch.column(columns.input_ids)],
            labels,
            done,
            {name: [as_plain(batch.column(name))] for name in columns.extra},
        )

    def per_token(self, columns: Columns) -> dict[str, list[pa.Array]]:
        """The other columns that hold a value per token."""
        return {name: self.extra[name] for name in columns.per_token if name in self.extra}

    def head(self, rows: int) -> Batch:
        """The first rows."""
        before = np.cumsum([0, *map(len, self.input_ids)])
        kept = [
            max(min(len(chunk), rows - int(start)), 0) for chunk, start in zip(self.input_ids, before, strict=False)
        ]

        def cut(chunks: list[pa.Array]) -> list[pa.Array]:
            return [chunk.slice(0, count) for chunk, count in zip(chunks, kept, strict=True) if count]

        labels = None if self.labels is None else cut(self.labels)
        return Batch(cut(self.input_ids), labels, self.done, {name: cut(chunks) for name, chunks in self.extra.items()})


class Places(Protocol):
    """What names documents by their rows; it can be pickled."""

    def place(self, row: int) -> str:
        """Where a user finds this row, as in "rows.jsonl line 18"."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Rows of a file, by number."""

    name: str
    first_row: int = 0
    indices: NDArray[Any] | None = None
    """Row i is row indices[i] of the file; None: row i itself."""

    def place(self, row: int) -> str:
        """Name the row."""
        row += self.first_row
        return f"{self.name} row {row if self.indices is None else self.indices[row]}"


class Input(Protocol):
    """One file, or one dataset in memory: what every format looks like to the rest of the package.

    A class that derives from it may leave out all but `file`, `path`, `has_labels` and `batches`. A dataclass needs
    `slots=True` for its fields to take the place of properties.
    """

    @property
    def file(self) -> SourceFile:
        """Name and size."""

    @property
    def path(self) -> Path | None:
        """Path of the file; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Number of documents; None where only reading tells."""
        return None

    @property
    def has_labels(self) -> bool | None:
        """Whether the labels column is there; None where the file holds no document."""

    @property
    def mapped(self) -> bool:
        """Whether this is a `MappedLists`, whose lists lie in memory for as long as it lives."""
        return False

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of its documents when they are decoded, or a little more; None where only reading tells."""
        return None

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of its other columns, as the file declares them; empty where only reading tells."""
        return {}

    @property
    def places(self) -> Places:
        """What names its documents, also when a decoded copy is read in its place."""
        return RowPlaces(self.file.name)

    def cut(self, size: int) -> Sequence[Input]:
        """Cut what is to be decoded into pieces that can be read side by side.

        The pieces follow from the file and `size` alone, about the bytes of a piece. `file.bytes` of a piece is its
        share of the file.
        """
        return (self,)

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, within bounded memory; may raise `DocumentError` with a row of this input.

        Args:
            pool: may help; the thread that iterates is working in it.
        """

    def place(self, row: int) -> str:
        """Where a user finds this row, as in "rows.jsonl line 18"."""
        return self.places.place(row)


class DocumentError(Exception):
    """A document is wrong: its row in the input and what is wrong; `Source` adds the document's index."""

    def __init__(self, row: int, message: str, place: str | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.message = message
        self.place = place

    def in_source(self, document: int) -> SourceError:
        """The same, of the document with this index in the source; the place must be there."""
        return SourceError(f"document {document} ({self.place}): {self.message}")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what pyarrow and the system raise about a file into one line that names it."""
    try:
        yield
    except (PackerError, DocumentError):
        raise
    except MemoryError as error:  # a damaged length may ask for any amount: nobody can tell
        raise PackerError(f"{name}: {shortage(error)}, unless the file is damaged") from error
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{name}: {short}") from error
        if error.errno is not None and error.strerror:
            raise PackerError(f"{name}: cannot be read: {error.strerror}") from error
        raise SourceError(f"{name}: cannot be read, truncated or corrupt: {_first_line(error)}") from error
    except (pa.ArrowException, ValueError, EOFError, RecursionError) as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{name}: {short}") from error
        raise SourceError(f"{name}: cannot be read, truncated or corrupt: {_first_line(error)}") from error


def null_message(column: str) -> str:
    """Say that a list is missing."""
    return f"'{column}' is null; drop the row or give it a list (it may be empty)"


def value_message(column: str, value: int, position: int, *, label: bool) -> str:
    """Say that a value cannot be a token id, or a label."""
    limit = "a label is a token id, or -100 for no loss" if label else f"a token id is from 0 to {LONGEST}"
    return f"'{column}' holds {value} at position {position}: {limit}; mend the source"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
