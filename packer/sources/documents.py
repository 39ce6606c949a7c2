"""Columns, batches of documents as Arrow lists, locations of documents, and errors for documents and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError, SourceError, StoreError, first_line, shortage
from packer.json_records import REMEDY, Reason
from packer.stores import AnyPath, RemotePath, is_remote
from packer.stores.buckets import ChangedError, opened_in_parallel

if TYPE_CHECKING:
    from datasets.table import Table as DatasetsTable

Item = TypeVar("Item")
Result = TypeVar("Result")

LONGEST = 2**31 - 1
"""Maximum number of tokens in a document, and maximum token id."""

MOST_RECORD = 1 << 28
"""Maximum size of a record in JSON or CSV, in bytes or characters; parsers need many times this memory."""


class DocumentError(Exception):
    """Raised for an invalid document, with its index in the input. `Source` adds the index in the source.

    Args:
        row: index of the document.
        message: description of the problem for the user.
        place: location of the document, such as "rows.jsonl line 18".
        reason: why the record cannot be used; None if other records have the same fault.
        of_record: whether `row` counts records instead of documents, because a record may make several documents.
    """

    def __init__(
        self, row: int, message: str, place: str | None = None, *, reason: Reason | None = None, of_record: bool = False
    ) -> None:
        super().__init__(message)
        self.row = row
        self.message = message
        self.place = place
        self.reason = reason
        self.of_record = of_record

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, because errors of tasks come from other processes."""
        return type(self), (self.row, self.message, self.place), vars(self)

    def at(self, row: int) -> DocumentError:
        """Return the same error for the document with index `row`."""
        return DocumentError(row, self.message, self.place, reason=self.reason, of_record=self.of_record)

    def in_source(self, document: int | None) -> SourceError:
        """Return the error for users, with the document's index in the source, if known, and its `place`."""
        where = self.place if document is None or self.of_record else f"document {document} ({self.place})"
        # If a template hides the ends of answers, most chats would be rejected.
        remedy = "" if self.reason in (None, "unlocated_spans") else f"; {REMEDY}"
        return SourceError(f"{where}: {self.message}{remedy}")


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
    except (OSError, pa.ArrowException, ValueError, EOFError, RecursionError) as error:
        if (short := shortage(error)) is not None:
            raise PackerError(f"{name}: {short}") from error
        if isinstance(error, OSError) and error.errno is not None and error.strerror:
            named = error.filename if is_remote(error.filename) else name  # names the object rather than its folder
            raise PackerError(f"{named}: cannot be read: {error.strerror}") from error
        what = f"cannot be read, truncated or corrupt: {first_line(error)}"
        if "decrypt" in str(error):  # raised by pyarrow for Parquet
            what = "it is encrypted, and packer takes no keys; write it without encryption"
        raise SourceError(f"{name}: {what}") from error


@contextmanager
def reading_copy(folder: AnyPath, name: str) -> Iterator[None]:
    """Convert errors raised while reading the decoded copy of a file.

    Raises a PackerError, not a `SourceError`: the source is valid, so the unfinished output is kept.
    """
    try:
        with reading(name):
            yield
    except PackerError as fault:
        if isinstance(fault.__cause__, StoreError):  # handled by `system_errors`, which adds the remedy
            raise fault.__cause__ from None
        if not isinstance(fault, SourceError):
            raise
        raise PackerError(
            f"{folder}: the decoded copy of {name} is damaged: remove this folder, and repeat the same command"
        ) from fault


def null_message(column: str) -> str:
    """Return the message for a missing list."""
    return f"'{column}' is null; drop the row or give it a list (it may be empty)"


def null_value_message(column: str, position: int, count: int) -> str:
    """Return the message for a null among the values of a list."""
    return f"'{column}' holds a null at position {position} of {count}; remove it or give it a value"


def wrong_values(values: NDArray[np.integer], largest: int = LONGEST, *, label: bool) -> NDArray[np.bool_]:
    """Return whether each value is invalid as a token id up to `largest` or, with `label`, as a label."""
    wrong: NDArray[np.bool_] = (values < 0) | (values > largest)
    return wrong & (values != NO_LOSS) if label else wrong


def value_message(
    column: str, value: int, position: int, largest: int = LONGEST, *, label: bool, text: str = ""
) -> str:
    """Return the message for a value that `wrong_values` finds. text: text of the token, if it is known."""
    if largest < value <= LONGEST:
        shown = f"{value} ({text!r})" if text else value
        limit = f"the model has ids 0 to {largest} (--vocab-size)"
        return f"'{column}' holds {shown} at position {position}: {limit}; take its tokenizer, or enlarge its embedding"
    limit = "a label is a token id, or -100 for no loss" if label else f"a token id is from 0 to {LONGEST}"
    return f"'{column}' holds {value} at position {position}: {limit}; fix the source"


def too_long(unit: str) -> str:
    """Return the message for a record that is larger than `MOST_RECORD` bytes or characters."""
    return f"the record has more than {MOST_RECORD:,} {unit}, the limit; split it into several, or remove it"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file of a source, named as in the manifest."""

    name: str
    """Path relative to the source, with "/" between folders; never absolute."""

    bytes: int
    """Size of the original file and of `beside`, even if a decoded copy is read instead."""

    path: AnyPath | None
    """Path of the file; None for data in memory."""

    beside: tuple[AnyPath, ...] = ()
    """Further files that are read with this file, such as the tokens of an index."""

    @classmethod
    def of(cls, path: AnyPath, name: str) -> SourceFile:
        """Return the record of a file, with its size."""
        with reading(name):
            return cls(name=name, bytes=path.stat().st_size, path=path)

    @property
    def stored(self) -> AnyPath:
        """Path of a file; data in memory has none."""
        assert self.path is not None
        return self.path

    @property
    def paths(self) -> tuple[AnyPath, ...]:
        """Paths of all files that are read; empty for data in memory."""
        return () if self.path is None else (self.path, *self.beside)


class Found(NamedTuple):
    """The files or the table of a source, before they are opened."""

    name: str
    files: list[SourceFile]

    saved: bool = False
    """Whether the files are Arrow streams written by `save_to_disk`."""

    table: DatasetsTable | None = None
    """Table of `datasets`, instead of files."""

    fingerprint: str | None = None
    """Fingerprint of the content of a dataset in memory; None for files."""

    pad_id: int | None = None
    """Padding token of the tokenizer, as stored in the report of `packer tokenize`."""

    def each(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Call a task for each item (a file, or an object made from it), in threads for files in object storage."""
        if any(isinstance(file.path, RemotePath) for file in self.files):
            return opened_in_parallel(task, items)
        return [*map(task, items)]


class Columns(NamedTuple):
    """Names of the columns to read from every file. For files without columns, the fields define a document."""

    input_ids: str
    labels: str
    extra: tuple[str, ...] = ()  # further columns to read, such as kept ones; every file must have them
    per_token: tuple[str, ...] = ()  # columns in `extra` with one or several values per token
    masks: tuple[str, ...] = ()  # columns in `extra` that mark trained tokens or padding
    weights: tuple[str, ...] = ()  # columns that may be masks of any numbers from 0 on, which weight the loss
    absent: tuple[str, ...] = ()  # mask columns that the first file lacks, so no file may have them
    widths: Mapping[str, int] = {}
    by_sequence: bool = False  # whether each sequence of an indexed file is a document
    eos_id: int | None = None  # token that ends each document in a bare array
    dtype: str | None = None  # type of the tokens in a bare array

    def wanted(self, *, has_labels: bool) -> tuple[str, ...]:
        """Return all columns to read, in order."""
        return (self.input_ids, *((self.labels,) if has_labels else ()), *self.extra)


COLUMNS = Columns("input_ids", "labels")
"""Columns of decoded streams; labels only if the source has them."""


def columns_of_side(role: str) -> Columns:
    """Return the columns of one side of preference pairs: `chosen_input_ids` and `chosen_labels` for "chosen"."""
    return Columns(f"{role}_input_ids", f"{role}_labels")


class Batch(NamedTuple):
    """Consecutive, unchecked documents of an input that is decoded."""

    input_ids: pa.Array
    labels: pa.Array | None
    done: int  # number of bytes of the file or piece read up to the end of this batch
    extra: dict[str, pa.Array] = {}  # noqa: RUF012 (never changed)
    counts: Mapping[str, int] = {}  # counts to sum over a source; for text, see `Encoder.encode`
    rejected: tuple[DocumentError, ...] = ()  # errors of rejected documents, ascending; these documents are empty
    records: NDArray[np.int64] | None = None  # record of each document, from 0; None if each is a separate record
    lines: bytes | None = None  # lines of the batch, if rejected documents are listed by line

    @property
    def record_count(self) -> int:
        """Number of records; each makes at least one document."""
        if self.records is None:
            return len(self.input_ids)
        return int(self.records[-1]) + 1 if len(self.records) else 0

    def first(self, count: int) -> Batch:
        """Return the lists of the first documents; only for batches in which each document is a record."""
        labels = None if self.labels is None else self.labels[:count]
        extra = {name: values[:count] for name, values in self.extra.items()}
        return Batch(self.input_ids[:count], labels, self.done, extra)

    def beside(self, columns: Columns) -> dict[str, pa.Array]:
        """Return the labels, if any, and the extra columns with a value per token, by name."""
        found = {} if self.labels is None else {columns.labels: self.labels}
        return found | {name: self.extra[name] for name in columns.per_token if name in self.extra}


def place_of_row(name: str, first_row: int, row: int) -> str:
    """Return the location of row `row` after `first_row` in a file: "rows.parquet row 17"."""
    return f"{name} row {first_row + row}"
