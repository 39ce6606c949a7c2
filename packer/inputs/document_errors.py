"""Errors about documents, and about files that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import NO_LOSS
from packer.errors import PackerError, SourceError, first_line
from packer.facts import Reason
from packer.facts.rejection import REMEDY
from packer.stores import AnyPath, is_remote
from packer.stores.buckets import ChangedError, StoreError
from packer.system_errors import shortage

LONGEST = 2**31 - 1
"""Largest number of tokens in a document; also the largest token id."""

MOST_RECORD = 1 << 28
"""Largest size of a record in JSON or CSV, in bytes or characters of text: a parser takes many times as much memory."""


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

    def in_source(self, document: int | None) -> SourceError:
        """Return the error for users, with the index of the document in the source if it is known, and its `place`."""
        where = self.place if document is None else f"document {document} ({self.place})"
        remedy = "" if self.reason is None else f"; {REMEDY}"
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
    """Convert errors of a decoded copy of a file, whose documents were checked when it was written into a folder.

    Not a `SourceError`: the source is not at fault, and the unfinished output is kept.
    """
    try:
        with reading(name):
            yield
    except PackerError as fault:
        if isinstance(fault.__cause__, StoreError):  # left to `system_errors`, which adds the remedy
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


def wrong_values(values: NDArray[np.integer], *, label: bool) -> NDArray[np.bool_]:
    """Return whether each value is not a token id, or not a label."""
    wrong: NDArray[np.bool_] = (values < 0) | (values > LONGEST)
    return wrong & (values != NO_LOSS) if label else wrong


def value_message(column: str, value: int, position: int, *, label: bool) -> str:
    """Return the message for a value that is not a token id, or not a label."""
    limit = "a label is a token id, or -100 for no loss" if label else f"a token id is from 0 to {LONGEST}"
    return f"'{column}' holds {value} at position {position}: {limit}; fix the source"


def too_long(unit: str) -> str:
    """Return the message for a record that is larger than `MOST_RECORD` bytes or characters."""
    return f"the record has more than {MOST_RECORD:,} {unit}, the limit; split it into several, or remove it"
