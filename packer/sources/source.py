"""A source: one or more inputs in order, read as one sequence of documents; those that it rejects; and its files.

Files are watched while they are packed, so that rows never mix two versions of a file.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packer.column_names import ANSWER, RECORD_IDS
from packer.errors import SourceError
from packer.json_records import REASONS, RejectedRecord, TextIdentity
from packer.sources.column_types import one_type
from packer.sources.documents import Columns, SourceFile
from packer.sources.format_reader import DecodedInput, Input
from packer.sources.token_tables import MappedLists, RecordColumn, TokenTable, ValueColumn
from packer.token_memory import TokenColumn


class TextEncoder(Protocol):
    """What a source asks of the encoder that tokenizes its text."""

    has_labels: bool
    documents_per_record: int | None
    identity: TextIdentity
    pad_id: int

    @property
    def note(self) -> str | None:
        """What the summary says of prompts and completions that are packed as texts."""

    def unread(self, counts: Mapping[str, int]) -> dict[str, list[str]]:
        """Return the counted fields of messages and parts that nothing reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejections:
    """Rejected documents of a source, in ascending order."""

    documents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(rejected,) number of each document."""

    reasons: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """(rejected,) index of the reason of each in `REASONS`."""

    parts: tuple[Callable[[], Iterator[RejectedRecord]], ...] = ()
    """Functions that read files which list them; empty unless the source has been decoded."""

    @classmethod
    def of(cls, numbers: array[int], parts: Iterable[Callable[[], Iterator[RejectedRecord]]] = ()) -> Rejections:
        """Make them of the number of each document, and the index of its reason in `REASONS`, in turn."""
        documents, reasons = np.array(numbers, np.int64).reshape(-1, 2).T
        return cls(documents=documents, reasons=reasons.astype(np.uint8), parts=tuple(parts))

    @property
    def counts(self) -> dict[str, int]:
        """Number of rejected documents by reason."""
        counts = np.bincount(self.reasons, minlength=len(REASONS))
        return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}

    def records(self) -> Iterator[RejectedRecord]:
        """Yield the records of the rejected documents, from the files that list them."""
        return (one for part in self.parts for one in part())


@dataclass(frozen=True, kw_only=True)
class Source:
    """Documents in a fixed order, from one or more inputs, opened and ready to read.

    A source holds no documents, only mappings of files and addresses of lists; every pass (`read_documents`) checks
    what it reads. A mapped source can be pickled; unpickling maps its files again by path.

    Documents are numbered from 0 across all inputs.
    """

    name: str
    inputs: tuple[Input, ...]
    """Files in order; a dataset in memory counts as one."""

    columns: Columns
    """Columns to read from every input."""

    encoder: TextEncoder | None = field(default=None, compare=False)
    """Tokenizes text; None if the source holds tokens."""

    fields: tuple[str, ...] = ()
    """Names of all columns in schemas and first records, read or not; none if one column is read of many."""

    fingerprint: str | None = None
    """Fingerprint of the content of a dataset in memory; None for files."""

    pad_id: int | None = None
    """Padding or end-of-sequence token of the tokenizer; None if unknown."""

    packed_by: tuple[str, ...] = ()
    """Columns by which rows that were packed before are divided into documents; empty if records are documents."""

    counts: Counter[str] = field(default_factory=Counter)
    """Sums of `Batch.counts` over inputs that were decoded, once they have been read."""

    rejections: Rejections = Rejections()
    """Rejected documents of inputs that were decoded, once they have been read."""

    @property
    def skips(self) -> bool:
        """Whether documents that cannot be used will be rejected, and empty."""
        return any(isinstance(input_, DecodedInput) and input_.skips for input_ in self.inputs)

    @property
    def numbers_records(self) -> bool:
        """Whether a record makes any number of documents, which the column `answer` numbers."""
        return any(input_.numbers_documents == ANSWER for input_ in self.inputs)

    @property
    def text(self) -> TextIdentity | None:
        """Everything that shapes the tokens of text, for the manifest; None if the source holds tokens."""
        return None if self.encoder is None else self.encoder.identity

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Files in order."""
        return tuple(input_.file for input_ in self.inputs)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `table` works and nothing has to be decoded."""
        return all(isinstance(input_, MappedLists) for input_ in self.inputs)

    @property
    def has_labels(self) -> bool:
        """Whether the documents have labels: either all have, or none has."""
        return any(input_.has_labels for input_ in self.inputs)

    def table(self, lengths: NDArray[np.int32]) -> TokenTable:
        """Return all documents of a mapped, checked source by address, given the length of each."""
        assert self.mapped, "spill first"
        mapped = self._mapped_inputs()
        labels = [input_.tokens(input_.columns.labels) for input_ in mapped if input_.labels]
        return TokenTable(
            input_ids=TokenColumn.joined([input_.tokens(input_.columns.input_ids) for input_ in mapped]),
            labels=TokenColumn.joined(labels) if self.has_labels else None,
            lengths=lengths,
            lists=None,
            extra=self.value_columns(),
        )

    def token_column(self, *, label: bool) -> str:
        """Return the name of the column with the tokens or labels, for messages."""
        return self.columns.labels if label else self.columns.input_ids

    def value_columns(self) -> dict[str, ValueColumn]:
        """Return the extra columns of a mapped source, one value per list, decoded on demand.

        A SourceError is raised if a column has different types in different files.
        """
        inputs = [(input_, store) for input_ in self._mapped_inputs() for store in input_.stores if len(store.ends)]
        types = [(input_.file.name, input_.types_in(store)) for input_, store in inputs]
        columns = {
            name: ValueColumn(
                name,
                one_type(self.name, name, [(file, kinds[name]) for file, kinds in types]),
                tuple(store for _, store in inputs),
            )
            for name in self.columns.extra
        }
        if self.numbers_records:
            stores = [store for input_ in self._mapped_inputs() for store in input_.stores if len(store.ends)]
            columns[RECORD_IDS] = RecordColumn.of(ANSWER, stores)
        return columns

    def _mapped_inputs(self) -> tuple[MappedLists, ...]:
        return tuple(input_ for input_ in self.inputs if isinstance(input_, MappedLists))


State = tuple[int, int, int]

_REST = 20
"""`Watch.check_again` waits this many times as long as the last check of all files took."""


@dataclass(kw_only=True, slots=True)
class Watch:
    """Source files and their state when the source was opened."""

    states: Mapping[Path, tuple[str, State]]
    """Name of each file in the source and its state (bytes, time of the last write in ns, inode), by path."""

    due: float = 0.0
    """Time of this machine's clock from which on `check_again` checks."""

    @classmethod
    def of(cls, opened: Source) -> Watch:
        """Watch all files of a source; a dataset in memory has none. Objects in a store are read by their version."""
        names = {path: path.name for file in opened.files for path in file.beside}
        names |= {file.path: file.name for file in opened.files if file.path is not None}
        return cls(states={path: (name, _state(path, name)) for path, name in names.items() if isinstance(path, Path)})

    def of_mapped(self, spilled: Source) -> Watch:
        """Watch only files that are still read. Decoded files may change."""
        inputs = [input_ for input_ in spilled.inputs if not isinstance(input_, MappedLists) or input_.origin is None]
        read = {path for input_ in inputs for path in input_.file.paths}
        return Watch(states={path: state for path, state in self.states.items() if path in read})

    def check(self) -> None:
        """Raise a SourceError if a file was written to, replaced or removed, by one `stat` call per file."""
        for path, (name, state) in self.states.items():
            now = _state(path, name)
            if now != state:
                what = f"from {state[0]:,} to {now[0]:,} bytes" if now[0] != state[0] else "or was replaced"
                raise SourceError(
                    f"{name}: the file changed {what} while it was read; repeat the command when nothing writes to it"
                )

    def check_again(self) -> None:
        """Check as `check` does, but not so often that it takes more than a twentieth of the time.

        It is called in every task: with 100,000 files and as many shards, `check` would make 10**10 `stat` calls.
        `check` must follow at the end.
        """
        begun = time.monotonic()
        if begun >= self.due:
            self.check()
            self.due = begun + _REST * (time.monotonic() - begun)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Watch, states=self.states), ()


def _state(path: Path, name: str) -> State:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(
            f"{name}: the file disappeared while it was read ({error.strerror}); restore it and repeat the command"
        ) from error
    return found.st_size, found.st_mtime_ns, found.st_ino
