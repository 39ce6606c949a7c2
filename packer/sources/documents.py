"""Documents as Arrow lists: inputs that yield them, tables of checked documents, and errors about both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError, SourceError, first_line
from packer.facts import Reason, TextIdentity
from packer.facts.rejection import REMEDY
from packer.gather import TokenColumn
from packer.sources.decoding.decode_pool import DecodePool
from packer.stores import AnyPath, is_remote
from packer.stores.requests import ChangedError, StoreError
from packer.system_errors import shortage

if TYPE_CHECKING:
    from packer.sources.mapped.record_batches import ValueColumn

LONGEST = 2**31 - 1
"""Largest number of tokens in a document; also the largest token id."""

MOST_RECORD = 1 << 28
"""Largest size of a record in JSON or CSV, in bytes or characters of text: a parser takes many times as much memory."""

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


class ListNumbers(Protocol):
    """Maps documents to lists: an array, or an object that computes its elements on demand."""

    def __getitem__(self, documents: NDArray[np.int64], /) -> NDArray[Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """A contiguous stretch of checked documents, in memory or memory-mapped.

    No list is null or holds a null, offsets are valid, labels are as long as input_ids. Gathering checks token values.
    """

    input_ids: TokenColumn
    """Lists of token ids."""

    labels: TokenColumn | None
    """Lists of labels; None if the source has none."""

    lengths: NDArray[np.int32]
    """(documents,) tokens in each document."""

    lists: ListNumbers | None
    """List of each document: document i is list lists[i] of the columns; None if it is list i."""

    extra: Mapping[str, ValueColumn]
    """Requested extra columns by name, with one value per list."""

    first_document: int
    """Index of the first document in the whole source."""

    def lists_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the list of the columns that each of these documents is."""
        return documents if self.lists is None else self.lists[documents].astype(np.int64)


class Columns(NamedTuple):
    """Names of the columns to read from every file."""

    input_ids: str
    labels: str
    extra: tuple[str, ...] = ()  # further columns to read, such as kept ones; every file must have them
    per_token: tuple[str, ...] = ()  # those of `extra` that hold a list with one value per token

    def wanted(self, *, has_labels: bool) -> tuple[str, ...]:
        """Return all columns to read, in order."""
        return (self.input_ids, *((self.labels,) if has_labels else ()), *self.extra)


def columns_of_side(role: str, extra: tuple[str, ...] = ()) -> Columns:
    """Return the columns of one side of preference pairs: `chosen_input_ids` and `chosen_labels` for "chosen"."""
    return Columns(f"{role}_input_ids", f"{role}_labels", extra)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenized:
    """Facts about a source of text."""

    identity: TextIdentity
    """Everything that shapes the tokens, for the manifest."""

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
    lines: bytes | None = None  # the lines that the batch was made of, if rejected ones are listed by line

    def per_token(self, columns: Columns) -> dict[str, list[pa.Array]]:
        """Return the extra columns that hold one value per token."""
        return {name: self.extra[name] for name in columns.per_token if name in self.extra}

    def slice(self, start: int, stop: int) -> Batch:
        """Return the documents from `start` to before `stop`; counts and lines are those of whole batches alone."""
        firsts = [0, *accumulate(map(len, self.input_ids))]
        if start == 0 and stop == firsts[-1]:
            return self
        bounds = [(max(start - first, 0), min(stop, end) - first) for first, end in pairwise(firsts)]

        def cut(chunks: list[pa.Array]) -> list[pa.Array]:
            return [chunk[begin:end] for chunk, (begin, end) in zip(chunks, bounds, strict=True) if begin < end]

        return Batch(
            cut(self.input_ids),
            None if self.labels is None else cut(self.labels),
            self.done,
            {name: cut(chunks) for name, chunks in self.extra.items()},
            rejected=tuple(one._replace(row=one.row - start) for one in self.rejected if start <= one.row < stop),
        )


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


class Input(Protocol):
    """A file, or a dataset in memory: mapped (`MappedLists`), decoded (`DecodedInput`), or packed (`PackedDocuments`).

    A dataclass needs `slots=True` for its fields to replace properties.
    """

    @property
    def file(self) -> SourceFile:
        """Name and size of the file."""

    @property
    def path(self) -> AnyPath | None:
        """Path of the file; None for data in memory."""

    @property
    def rows(self) -> int | None:
        """Number of documents; None if it is known only after reading."""
        return None

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None if the file has no documents."""

    @property
    def mapped(self) -> bool:
        """Whether this is a `MappedLists`, whose lists can be addressed in memory as long as it lives."""
        return False

    @property
    def decoded(self) -> DecodedSize | None:
        """Size of the documents once decoded, or slightly more; None if it is known only after reading."""
        return None

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns; empty if the file declares none."""
        return {}

    @property
    def copied_to(self) -> AnyPath | None:
        """Folder with the decoded copy that is read instead; None for the file itself."""
        return None

    @property
    def places(self) -> Places:
        """Locations of the documents, which stay the same when a decoded copy is read instead."""
        return RowPlaces(self.file.name)

    def cut(self, size: int) -> Sequence[Input]:
        """Cut an input that must be decoded into pieces that can be read in parallel.

        The pieces depend only on the file and on `size`. `file.bytes` of a piece is its share of the file.

        Args:
            size: approximate size of a piece, in bytes.
        """
        return (self,)

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the documents in order, using bounded memory.

        Args:
            pool: pool that decodes; None for a small one of its own.

        Raises:
            DocumentError: a document is invalid.
        """

    def place(self, row: int) -> str:
        """Return the location of a document, such as "rows.jsonl line 18"."""
        return self.places.place(row)


class DocumentError(Exception):
    """Raised for an invalid document, with its index in the input; `Source` adds its index in the source.

    Args:
        row: index of the document.
        message: what is wrong, for the user.
        place: location of the document, such as "rows.jsonl line 18".
        reason: why the record cannot be used; None if the fault is not in this record alone.
        listed: the message in the list of rejected records, if the one for the user quotes the record.
    """

    def __init__(
        self, row: int, message: str, place: str | None = None, *, reason: Reason | None = None, listed: str = ""
    ) -> None:
        super().__init__(message)
        self.row = row
        self.message = message
        self.place = place
        self.reason = reason
        self.listed = listed or message

    def at(self, row: int) -> DocumentError:
        """Return the same error for the document with another index."""
        return DocumentError(row, self.message, self.place, reason=self.reason, listed=self.listed)

    def in_source(self, document: int) -> SourceError:
        """Return the error for users, with the index of the document in the source; `place` must be set."""
        remedy = "" if self.reason is None else f"; {REMEDY}"
        return SourceError(f"document {document} ({self.place}): {self.message}{remedy}")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert errors of pyarrow and the operating system into a one-line error that names the file."""
    try:
        yield
    except (PackerError, DocumentError):
        raise
    except MemoryError as error:  # a damaged file may request any amount of memory
        raise PackerError(f"{name}: {shortage(error)}, unless the file is damaged") from error
    except StoreError as error:
        raise (SourceError if isinstance(error, ChangedError) else PackerError)(str(error)) from error
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{name}: {short}") from error
        if error.errno is not None and error.strerror:
            named = error.filename if is_remote(error.filename) else name  # the object, if it is one of a folder
            raise PackerError(f"{named}: cannot be read: {error.strerror}") from error
        raise SourceError(f"{name}: cannot be read, truncated or corrupt: {first_line(error)}") from error
    except (pa.ArrowException, ValueError, EOFError, RecursionError) as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{name}: {short}") from error
        raise SourceError(f"{name}: cannot be read, truncated or corrupt: {first_line(error)}") from error


@contextmanager
def reading_copy(folder: AnyPath, name: str) -> Iterator[None]:
    """Convert errors of a decoded copy of a file, whose documents were checked when it was written.

    Not a `SourceError`: the source is not at fault, and the unfinished output is kept.

    Args:
        folder: folder of the copy.
        name: name of the file.
    """
    try:
        with reading(name):
            yield
    except SourceError as fault:
        raise PackerError(
            f"{folder}: the decoded copy of {name} is damaged: remove this folder, and repeat the same command"
        ) from fault


def reading_input(input_: Input) -> AbstractContextManager[None]:
    """Return `reading` for an input, or `reading_copy` for the decoded copy of one."""
    name, folder = input_.file.name, input_.copied_to
    return reading(name) if folder is None else reading_copy(folder, name)


def null_message(column: str) -> str:
    """Return the message for a missing list."""
    return f"'{column}' is null; drop the row or give it a list (it may be empty)"


def wrong_values(values: NDArray[Any], *, label: bool) -> NDArray[np.bool_]:
    """Return whether each value is not a token id, or not a label."""
    wrong: NDArray[np.bool_] = (values < 0) | (values > LONGEST)
    return wrong & (values != NO_LOSS) if label else wrong


def value_message(column: str, value: int, position: int, *, label: bool) -> str:
    """Return the message for a value that is not a token id, or not a label."""
    limit = "a label is a token id, or -100 for no loss" if label else f"a token id is from 0 to {LONGEST}"
    return f"'{column}' holds {value} at position {position}: {limit}; fix the source"
