"""A source: inputs in order, read as one sequence of checked documents.

Files are watched while they are packed, so that rows never mix two versions of a file. Values of documents are
addressed in place, or decoded each time they are needed.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, LOSS_WEIGHTS, RECORD_IDS
from packer.errors import SourceError
from packer.json_records import REASONS, FileIdentity, RejectedRecord, SourceIdentity, TextIdentity
from packer.options.option import WeightsPer
from packer.progress import Progress, documents_of, silent
from packer.shards.row_format import RowFormat
from packer.sources.arrow_files import fetch_queued
from packer.sources.column_types import cast_to_common_type, one_type
from packer.sources.documents import LONGEST, Columns, DocumentError, SourceFile, reading, value_message, wrong_values
from packer.sources.format_reader import BatchStore
from packer.sources.inputs import Input, MappedLists
from packer.sources.list_checks import WEIGHTED_WITHIN, as_wide, largest_weights, width_of
from packer.token_memory.token_column import TokenColumn


@dataclass(frozen=True)
class ValueColumn:
    """A column with one value per list of a table. Record batches are decoded each time values are needed."""

    name: str

    type: pa.DataType
    stores: tuple[BatchStore, ...]
    """Record batches with the values, in order. If `kind` has inner lists of a fixed size, values get that type."""

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All values, as arrays that are decoded one at a time."""
        for store in self.stores:
            for (chunk,) in store.read(range(len(store.ends)), [self.name]):
                yield as_wide(chunk, width_of(self.type))

    def at(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the values of the lists with these ascending numbers."""
        # Take from one chunk at a time, because `take` on a chunked array copies all chunks.
        parts = [chunk.take(as_arrow(numbers)) for _, chunk, numbers in self._chunks_with(lists)]
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)

    def _chunks_with(self, lists: NDArray[np.int64]) -> Iterator[tuple[int, pa.Array, NDArray[np.int64]]]:
        """Yield (number, column, lists in it) for each record batch that has some of the ascending `lists`."""
        first = batches = 0
        for store in self.stores:
            end = first + int(store.ends[-1]) if len(store.ends) else first
            inside = lists[slice(*np.searchsorted(lists, [first, end]))] - first
            wanted, starts = np.unique(np.searchsorted(store.ends, inside, side="right"), return_index=True)
            runs = np.split(inside, starts[1:])[: len(wanted)]
            befores = np.concatenate([[0], store.ends])[wanted]
            chunks = store.read(wanted.tolist(), [self.name])
            for number, (chunk,), run, before in zip(wanted.tolist(), chunks, runs, befores, strict=True):
                yield batches + number, chunk, run - before
            first, batches = end, batches + len(store.ends)

    def of_lists(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the values of lists by number, in any order and with repetitions."""
        found, positions = np.unique(lists, return_inverse=True)
        return self.at(found).take(as_arrow(positions))

    @cached_property
    def addresses(self) -> TokenColumn:
        """Addresses of a column with one or several values per token. For several values, offsets may be computed."""
        return TokenColumn.from_arrow(self.chunks, self.stores if width_of(self.type) is None else None)


@dataclass(frozen=True)
class RecordColumn(ValueColumn):
    """Record number of each list, derived from a column that restarts at 0 in each record."""

    before: NDArray[np.int64]
    """Number of records of the source that begin before each record batch of the stores; shape (batches,)."""

    @classmethod
    def of(cls, name: str, stores: tuple[BatchStore, ...]) -> RecordColumn:
        """Read the column once, to count the records."""
        numbers = ValueColumn(name, pa.int32(), stores).chunks
        counts = [int(np.count_nonzero(as_numpy(chunk) == 0)) for chunk in numbers]
        return cls(name, pa.int64(), stores, np.cumsum([0, *counts], dtype=np.int64)[:-1])

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All record numbers, as int64 arrays that are computed one at a time."""
        numbers = ValueColumn(self.name, self.type, self.stores).chunks
        for chunk, before in zip(numbers, self.before.tolist(), strict=True):
            yield as_arrow(before + np.cumsum(as_numpy(chunk) == 0) - 1)

    def at(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the record numbers of the lists with these ascending numbers."""
        parts = [np.zeros(0, np.int64)]
        for batch, chunk, numbers in self._chunks_with(lists):
            parts.append((self.before[batch] + np.cumsum(as_numpy(chunk) == 0) - 1)[numbers])
        return as_arrow(np.concatenate(parts))


@dataclass(frozen=True)
class DocumentWeights(ValueColumn):
    """Weight of each document, from lists in which all of its trained tokens have this weight."""

    @property
    def chunks(self) -> Iterator[pa.Array]:
        """All weights, as float32 arrays that are computed one at a time."""
        lists = ValueColumn(self.name, pa.list_(self.type), self.stores)
        return (as_arrow(largest_weights(chunk)) for chunk in lists.chunks)

    def at(self, lists: NDArray[np.int64]) -> pa.Array:
        """Return the weights of lists, whose numbers ascend."""
        return as_arrow(largest_weights(ValueColumn(self.name, pa.list_(self.type), self.stores).at(lists)))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """Checked documents of a source, in memory or memory-mapped.

    No list is null or contains a null, offsets are valid, and labels are as long as input_ids. Token values are checked
    when they are gathered.
    """

    input_ids: TokenColumn
    labels: TokenColumn | None
    """Lists of labels; None if the source has none."""

    lengths: NDArray[np.int32]
    """Number of tokens in each document, shape (documents,)."""

    lists: NDArray[np.int64] | None
    """Index of each document's list in the columns; None if document i is list i."""

    extra: Mapping[str, ValueColumn]
    """Requested extra columns by name, with one value per list."""

    def lists_of(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the lists of these documents."""
        return documents if self.lists is None else self.lists[documents]

    def token_columns(self, row_format: RowFormat) -> dict[str, TokenColumn]:
        """Return the per-token columns to copy into rows. An index copies none, but its labels are counted."""
        columns = {} if row_format.index_only else {"input_ids": self.input_ids}
        if self.labels is not None and "labels" in row_format.token_columns:
            columns["labels"] = self.labels
        return columns | {name: self.extra[name].addresses for name in row_format.stored_kept_tokens}


class TextEncoder(Protocol):
    """Interface of the encoder that tokenizes the text of a source."""

    has_labels: bool
    documents_per_record: int | None
    identity: TextIdentity
    pad_id: int

    @property
    def note(self) -> str | None:
        """Note in the summary if prompts and completions are packed as plain text."""

    def unread(self, counts: Mapping[str, int]) -> dict[str, list[str]]:
        """Return the counted fields of messages and parts that nothing reads."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejections:
    """Rejected documents of a source, in ascending order."""

    documents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of each document, shape (rejected,)."""

    reasons: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Index in `REASONS` of the reason of each document, shape (rejected,)."""

    parts: tuple[Callable[[], Iterator[RejectedRecord]], ...] = ()
    """Functions that yield the rejected records from the files written while decoding; empty if nothing was decoded."""

    @classmethod
    def of(cls, numbers: array[int], parts: Iterable[Callable[[], Iterator[RejectedRecord]]] = ()) -> Rejections:
        """Build from a flat array of pairs: number of a document, index of its reason in `REASONS`."""
        documents, reasons = np.array(numbers, np.int64).reshape(-1, 2).T
        return cls(documents=documents, reasons=reasons.astype(np.uint8), parts=tuple(parts))

    @property
    def counts(self) -> dict[str, int]:
        """Number of rejected documents by reason."""
        counts = np.bincount(self.reasons, minlength=len(REASONS))
        return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}

    def records(self) -> Iterator[RejectedRecord]:
        """Yield the records of the rejected documents from the files that list them."""
        return (one for part in self.parts for one in part())


@dataclass(frozen=True, kw_only=True)
class Source:
    """Documents in a fixed order, from one or more inputs, opened and ready to read.

    A source holds no documents, only file mappings and addresses of lists; every pass (`read_documents`) checks what it
    reads. A mapped source can be pickled; unpickling maps its files again by path.

    Documents are numbered from 0 across all inputs.
    """

    name: str
    inputs: tuple[Input, ...]
    """Files in order; a dataset in memory counts as one."""

    columns: Columns
    """Columns to read from every input."""

    encoder: TextEncoder | None = field(default=None, compare=False)
    """Encoder of text; None if the source holds tokens."""

    fields: tuple[str, ...] = ()
    """Names of all columns in schemas and first records, read or not; empty if only one of many columns is read."""

    fingerprint: str | None = None
    """Fingerprint of the content of a dataset in memory; None for files."""

    pad_id: int | None = None
    """Padding or end-of-sequence token of the tokenizer; None if unknown."""

    skips: bool = False
    """Whether unusable documents are rejected when they are decoded; they keep their number and become empty."""

    packed_by: tuple[str, ...] = ()
    """Columns by which already packed rows are divided into documents; empty if records are documents."""

    counts: Counter[str] = field(default_factory=Counter)
    """Sums of `Batch.counts` over decoded inputs, available after reading them."""

    rejections: Rejections = Rejections()
    """Rejected documents of decoded inputs, available after reading them."""

    @property
    def numbers_records(self) -> bool:
        """Whether a record can make several documents, which the column `answer` numbers."""
        return any(input_.numbers_documents == ANSWER for input_ in self.inputs)

    @property
    def weights_per(self) -> WeightsPer | None:
        """What has a weight of its own, available after reading decoded inputs; None if all weights are 0 or 1."""
        if LOSS_WEIGHTS not in self.columns.extra:
            return None
        return "token" if self.counts[WEIGHTED_WITHIN] else "document"

    @property
    def text(self) -> TextIdentity | None:
        """Everything that determines the tokens of text, for the manifest; None if the source holds tokens."""
        return None if self.encoder is None else self.encoder.identity

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Files in order."""
        return tuple(input_.file for input_ in self.inputs)

    @property
    def needed(self) -> set[str]:
        """Names of the columns that are read."""
        return {name for input_ in self.inputs for name in input_.needed}

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `table` works and nothing must be decoded."""
        return all(isinstance(input_, MappedLists) for input_ in self.inputs)

    @property
    def has_labels(self) -> bool:
        """Whether the documents have labels; either all have them, or none."""
        return any(input_.has_labels for input_ in self.inputs)

    def table(self, lengths: NDArray[np.int32]) -> TokenTable:
        """Return a table with the addresses of all documents of a mapped and checked source; `lengths` are theirs."""
        assert self.mapped, "spill first"
        mapped = self.mapped_inputs
        labels = [input_.tokens(input_.columns.labels) for input_ in mapped if input_.labels]
        return TokenTable(
            input_ids=TokenColumn.joined([input_.tokens(input_.columns.input_ids) for input_ in mapped]),
            labels=TokenColumn.joined(labels) if self.has_labels else None,
            lengths=lengths,
            lists=None,
            extra=self.value_columns(),
        )

    def value_columns(self) -> dict[str, ValueColumn]:
        """Return the extra columns of a mapped source, one value per list, decoded on demand.

        Raises a SourceError if a column has different types in different files.
        """
        inputs = [(input_, store) for input_ in self.mapped_inputs for store in input_.stores if len(store.ends)]
        types = [(input_.file.name, input_.types_in(store)) for input_, store in inputs]
        stores, columns = tuple(store for _, store in inputs), dict[str, ValueColumn]()
        for name in self.columns.extra:
            kind = one_type(self.name, name, [(file, kinds[name]) for file, kinds in types])
            columns[name] = ValueColumn(name, kind, stores)
        if self.numbers_records:
            columns[RECORD_IDS] = RecordColumn.of(ANSWER, stores)
        if self.weights_per == "document":
            columns[LOSS_WEIGHTS] = DocumentWeights(LOSS_WEIGHTS, pa.float32(), stores)
        return columns

    @property
    def mapped_inputs(self) -> tuple[MappedLists, ...]:
        """Inputs that can be addressed in memory."""
        return tuple(input_ for input_ in self.inputs if isinstance(input_, MappedLists))


State = tuple[int, int, int]

_REST = 20
"""`Watch.check_again` waits this many times as long as the last check of all files took."""


@dataclass(kw_only=True, slots=True)
class Watch:
    """Source files and their state when the source was opened."""

    states: Mapping[Path, tuple[str, State]]
    """By path, the name of each file in the source and its state: bytes, time of the last write in ns, inode."""

    due: float = 0.0
    """Monotonic time of the next check by `check_again`."""

    @classmethod
    def of(cls, opened: Source) -> Watch:
        """Watch all files of a source; a dataset in memory has none. Objects in storage are read by version instead."""
        names = {path: path.name for file in opened.files for path in file.beside}
        names |= {file.path: file.name for file in opened.files if file.path is not None}
        return cls(states={path: (name, _state(path, name)) for path, name in names.items() if isinstance(path, Path)})

    def of_mapped(self, spilled: Source) -> Watch:
        """Watch only mapped files. Decoded files are not read again and may change."""
        read = {path for input_ in spilled.mapped_inputs if not input_.is_copy for path in input_.file.paths}
        return Watch(states={path: state for path, state in self.states.items() if path in read})

    def check(self) -> None:
        """Raise a SourceError if a file was modified, replaced or removed; makes one `stat` call per file."""
        for path, (name, state) in self.states.items():
            now = _state(path, name)
            if now != state:
                what = f"from {state[0]:,} to {now[0]:,} bytes" if now[0] != state[0] else "or was replaced"
                raise SourceError(
                    f"{name}: the file changed {what} while it was read; repeat the command when nothing writes to it"
                )

    def check_again(self) -> None:
        """Do the same as `check`, unless checks would take more than a twentieth of the time.

        Every task calls this: with 100,000 files and as many shards, `check` would make 10**10 `stat` calls. Call
        `check` at the end.
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


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Checked documents of a source, numbered in its order; returned by `read_documents`.

    No data is held per document, except for requested lengths. Can be pickled; addresses of columns are computed again.
    """

    source: Source
    """The source after reading it to its end, with the counts and rejections of all documents."""

    identity: SourceIdentity

    lengths: NDArray[np.int32] | None = None
    """Number of tokens of each document, shape (documents,); None unless requested."""

    extra: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """Extra columns, one value per list; empty unless requested."""

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)"."""
        number = document
        for input_, file in zip(self.source.inputs, self.identity.files, strict=True):
            if number < file.rows:
                return f"document {document} ({input_.place(number)})"
            number -= file.rows
        return f"document {document}"

    def value_fault(
        self, document: int, start: int, values: NDArray[np.integer], *, label: bool, largest: int = LONGEST
    ) -> str:
        """Return a message that names the first value in a part of a document that is not a token id or label.

        `start` is the position of the first of `values` in the document, `largest` the maximum token id.
        """
        position = int(wrong_values(values, largest, label=label).argmax())
        name = self.source.columns.labels if label else self.source.columns.input_ids
        message = value_message(name, int(values[position]), start + position, largest, label=label)
        return f"{self.describe(document)}: {message}"

    @cached_property
    def table(self) -> TokenTable:
        """Columns of all documents of a mapped source, by address. `lengths` is empty."""
        with reading(self.source.name):
            fetch_queued()
        return self.source.table(np.zeros(0, np.int32))

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def read_documents(
    source: Source, progress: Progress = silent, *, hold_lengths: bool = False, with_extra: bool = False
) -> Documents:
    """Check every document of a source in one pass.

    No data is held per document, unless lengths or extra columns are requested. Raises a SourceError if the source has
    no documents, if a document or file is invalid, or if no type holds all values of an extra column.
    """
    stage = "lengths" if source.mapped else "tokenize" if source.encoder else "decode"
    size = sum(file.bytes for file in source.files)
    digest, counts, rejected = xxhash.xxh3_128(), Counter(source.counts), array("q")
    held, columns = [np.empty(0, np.int32)], defaultdict[str, list[pa.Array]](list)
    files, done, finished = list[FileIdentity](), 0, 0
    for input_ in source.inputs:
        first, tokens = done, 0
        try:
            for chunk in input_.chunks(source.columns.extra if with_extra else ()):
                lengths = chunk.lengths
                for one in chunk.rejected:
                    rejected.extend((done + one.row, REASONS.index(one.reason)))
                for name, values in chunk.extra.items():
                    columns[name] += values
                counts.update(chunk.counts)
                if hold_lengths:
                    held.append(lengths)
                digest.update(lengths.astype("<i4", copy=False).data)
                done, tokens = done + len(lengths), tokens + int(lengths.sum(dtype=np.int64))
                progress(stage, *documents_of(done, finished + chunk.done, size))
        except DocumentError as fault:
            raise fault.in_source(first + fault.row) from None
        file = input_.file
        files.append(FileIdentity(name=file.name, bytes=file.bytes, rows=done - first, tokens=tokens))
        finished += file.bytes
    if not done:
        raise SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")
    if not source.mapped:
        source = replace(source, counts=counts, rejections=Rejections.of(rejected))
    documents = Documents(
        source=source,
        identity=SourceIdentity(
            files=tuple(files),
            documents=done,
            tokens=sum(file.tokens for file in files),
            labels=source.has_labels,
            lengths_xxh3_128=digest.hexdigest(),
            columns=source.columns.extra,
            widths=source.columns.widths or None,
            text=source.text,
        ),
        lengths=np.concatenate(held) if hold_lengths else None,
    )
    return replace(documents, extra=_extra(documents, columns)) if with_extra else documents


def _extra(documents: Documents, columns: Mapping[str, Sequence[pa.Array]]) -> dict[str, pa.ChunkedArray]:
    """Return the extra columns of documents, joined from their parts."""
    extra = {}
    for name, chunks in columns.items():
        try:
            extra[name] = pa.chunked_array(cast_to_common_type([chunk for chunk in chunks if len(chunk)], name))
        except DocumentError as fault:  # the error names the first document that does not fit
            raise SourceError(f"{documents.describe(fault.row)}: {fault.message}") from None
    if documents.source.numbers_records:
        extra[RECORD_IDS] = pa.chunked_array([as_arrow(np.cumsum(as_numpy(extra[ANSWER].combine_chunks()) == 0) - 1)])
    return extra
