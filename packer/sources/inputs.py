"""Inputs: files whose documents are in memory or are decoded. Both yield checked documents in order."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import LOSS_WEIGHTS
from packer.engines.engine import DecodePool
from packer.errors import SourceError
from packer.sources.arrow_files import MappedFile
from packer.sources.column_types import holds_json, join, no_number, one_type, plain_type
from packer.sources.documents import Batch, Columns, DocumentError, SourceFile, reading, reading_copy
from packer.sources.format_reader import BatchStore, Block, Lists, Reader
from packer.sources.list_checks import (
    BlockRecords,
    Faults,
    as_wide,
    decode_lists,
    document_error,
    document_lengths,
    is_nested,
    joined_batches,
    values_of,
    values_of_column,
    wide_type,
)
from packer.sources.meanings import ATTENTION, counted_fields
from packer.stores import RemotePath
from packer.token_memory.token_column import TokenColumn, list_lengths

BatchStep: TypeAlias = Callable[[Batch], Batch]
"""A check or change of a batch. Raises a DocumentError with the index of the document in the batch."""


class Chunk(NamedTuple):
    """Consecutive checked documents of an input."""

    lengths: NDArray[np.int32]
    """Number of tokens of each document, shape (documents,)."""

    done: int
    """Number of bytes of the file up to the end of these documents."""

    extra: Mapping[str, Sequence[pa.Array]]
    counts: Mapping[str, int] = {}
    """See `Batch.counts`."""

    rejected: tuple[DocumentError, ...] = ()
    """Errors of rejected documents, ascending; these documents are empty."""


_DOCUMENTS = 1 << 20  # number of documents whose lengths are yielded together: 4 MB
_CHUNKS = 1 << 10  # maximum number of small record batches read together


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedLists:
    """An input whose lists are in memory: a mapped file, a table, or the mapped decoded copy of an input."""

    reader: Reader
    """Reader that decodes the lists; for a decoded copy, the reader of the original file."""

    stores: tuple[BatchStore, ...]
    """Record batches in order. A decoded copy may have several files."""

    columns: Columns
    labels: bool
    is_copy: bool = False
    numbers_documents: str = ""
    """Column that numbers the documents of each record from 0; empty if each record makes one document."""

    @property
    def file(self) -> SourceFile:
        """Name, path and size of the file."""
        return self.reader.file

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that are read."""
        return self.columns.wanted(has_labels=self.labels)

    @property
    def rows(self) -> int:
        """Number of documents."""
        return sum(int(store.ends[-1]) for store in self.stores if len(store.ends))

    @property
    def has_labels(self) -> bool | None:
        """Whether there are labels; None if there are neither labels nor documents."""
        return None if not self.labels and not self.rows else self.labels

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Types of the extra columns; empty if there are no documents."""
        return next((self.types_in(store) for store in self.stores if len(store.ends)), {})

    def types_in(self, store: BatchStore) -> dict[str, pa.DataType]:
        """Return the types that `chunks` yields for the extra columns in one of the stores."""
        names, widths = self.columns.extra, self.columns.widths
        return {name: wide_type(store.schema.field(name).type, widths.get(name)) for name in names}

    def tokens(self, name: str) -> TokenColumn:
        """Return the addresses of the token or label column with this name."""
        return TokenColumn.joined([store.tokens[name] for store in self.stores])

    def arrays(self, *names: str) -> Iterator[list[pa.Array]]:
        """Decode columns; yield a list of one array per column for each record batch."""
        for store in self.stores:
            for arrays in store.read(range(len(store.ends)), names):
                yield [as_wide(array, self.columns.widths.get(name)) for name, array in zip(names, arrays, strict=True)]

    def values(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        """Yield extra columns of the documents in order."""
        return (dict(zip(names, arrays, strict=True)) for arrays in self.arrays(*names))

    def chunks(self, extra: Sequence[str] = ()) -> Iterator[Chunk]:
        """Check the documents, and yield about a million at a time, with the given extra columns.

        Raises a DocumentError, with its place, if a document is invalid. Token values are checked when they are
        gathered.
        """
        columns, count, size = self.columns, max(self.rows, 1), self.file.bytes
        names = (columns.input_ids, *((columns.labels,) if self.labels else ()), *columns.per_token)
        parts, values = list[NDArray[np.int32]](), defaultdict[str, list[pa.Array]](list)
        held = row = 0
        with self._reading():
            for arrays in self.arrays(*names, *extra):
                for name, array in zip(extra, arrays[len(names) :], strict=True):
                    values[name].append(array)
                for start in range(0, len(arrays[0]), _DOCUMENTS):
                    tokens, *others = (array.slice(start, _DOCUMENTS) for array in arrays[: len(names)])
                    beside = dict(zip(names[1:], others, strict=True))
                    parts.append(document_lengths(tokens, beside, columns.widths))
                    for wrong in np.flatnonzero(parts[-1] < 0)[:1].tolist():
                        fault = document_error(tokens, beside, wrong, columns).at(row + wrong)
                        fault.place = self.place(fault.row)
                        raise fault
                    held, row = held + len(tokens), row + len(tokens)
                    if held >= _DOCUMENTS or len(parts) >= _CHUNKS:
                        yield Chunk(np.concatenate(parts), size * row // count, values)
                        parts, values, held = [], defaultdict(list), 0
        if parts:
            yield Chunk(np.concatenate(parts), size, values)

    def place(self, row: int) -> str:
        """Return the location of a document in its file, such as "rows.jsonl line 18"."""
        record, left = -1 if self.numbers_documents else row, row + 1
        for (numbers,) in self.arrays(self.numbers_documents) if self.numbers_documents else ():
            record, left = record + int(np.count_nonzero(as_numpy(numbers[:left]) == 0)), max(left - len(numbers), 0)
        return self.reader.place(record)

    def _reading(self) -> AbstractContextManager[None]:
        """Convert errors raised while reading the file or its decoded copy."""
        for store in self.stores[: int(self.is_copy)]:
            assert isinstance(store, MappedFile)
            return reading_copy(store.state.path.parent, self.file.name)
        return reading(self.file.name)


def _slice(records: BlockRecords, first: int, last: int) -> BlockRecords:
    return records.slice(first, last - first) if isinstance(records, pa.RecordBatch) else records[first:last]


_THREADS = 2  # number of threads for an input that is read alone


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedInput:
    """A file, or a piece of one, whose documents are decoded each time they are read."""

    reader: Reader
    needed: tuple[str, ...]
    extra: tuple[str, ...]
    """Columns among `needed` that stay with the documents. `decode` may return new values; other columns are copied."""

    decode: Callable[[BlockRecords], Batch]
    """Function that converts records to documents, and can be pickled. Its DocumentErrors name a record by number."""

    empty: Batch
    """Empty documents that take the place of an unusable record."""

    fault_in: Callable[[Batch], DocumentError | None] | None = None
    """Function that returns the error for the first unusable document of a decoded batch; can be pickled."""

    is_slow: bool
    """Whether decoding is slow enough to run ahead in several threads, at the cost of memory."""

    has_labels: bool | None
    """Whether the documents have labels after all steps; None if there are no documents."""

    masks: tuple[str, ...] = ()
    """Mask columns that `decode` applies: it strips padding or makes labels."""

    steps: tuple[BatchStep, ...] = ()
    """Steps applied to each batch, in order."""

    numbers_documents: str = ""
    """Column that numbers the documents of each record from 0; empty if each record makes one document."""

    skips: bool = False
    """Whether records that cannot be used are rejected."""

    @property
    def file(self) -> SourceFile:
        """Name, path and size of the file."""
        return self.reader.file

    @property
    def rows(self) -> int | None:
        """Number of documents; None if unknown before reading."""
        return None if self.numbers_documents else self.reader.rows

    @property
    def declared_types(self) -> Mapping[str, pa.DataType]:
        """Declared types of the extra columns; empty without a schema or documents. JSON declares no types."""
        fields = self.reader.fields
        if not isinstance(fields, pa.Schema) or self.rows == 0:
            return {}
        types = {name: fields.field(name).type for name in self.extra}
        return {name: kind for name, kind in types.items() if not holds_json(kind)}

    def cut(self, size: int) -> Sequence[DecodedInput]:
        """Cut into the pieces of the reader (`Reader.cut`). `file.bytes` of a piece is its share of the file."""
        return [replace(self, reader=piece) for piece in self.reader.cut(size)]

    def batches(self, pool: DecodePool | None = None) -> Iterator[Batch]:
        """Yield the checked documents in order, one `Batch` per block. Raises a DocumentError if one is invalid.

        Blocks are decoded in the threads of `pool`, by default a small separate pool.
        """
        blocks = self.reader.blocks(self.needed)
        with reading(self.file.name):
            if not self.is_slow:
                yield from self._numbered(map(self._decoded, blocks))
                return
            own = closing(DecodePool(_THREADS)) if pool is None else nullcontext(pool)
            with own as working, closing(working.in_order(self._decoded, blocks)) as results:
                yield from self._numbered(results)

    def chunks(self, extra: Sequence[str] = ()) -> Iterator[Chunk]:
        """Yield the checked documents in order, with these extra columns. Raises a DocumentError if one is invalid."""
        for batch in self.batches():
            lengths = list_lengths(batch.input_ids).astype(np.int32)
            values = {name: [batch.extra[name]] for name in extra}
            yield Chunk(lengths, batch.done, values, batch.counts, batch.rejected)

    def values(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        """Yield extra columns of the documents in order."""
        return ({name: batch.extra[name] for name in names} for batch in self.batches())

    def _decoded(self, block: tuple[Block, int]) -> Batch:
        """Decode a block and apply all steps; `block` is (block, bytes of the file up to its end)."""
        content, done = block
        records, faults = self.reader.records(content, self.needed)
        try:
            if faults:
                raise faults[min(faults)]
            batch = self._with_kept(self.decode(records), records)
        except DocumentError as fault:
            if not self.skips:
                raise self._first_fault(records, fault) from None
            batch = self._usable(records, faults)
        if faults:
            owners = range(len(records)) if batch.records is None else batch.records.tolist()
            rejected = tuple(faults[row].at(at) for at, row in enumerate(owners) if row in faults)
            batch = batch._replace(rejected=rejected)
        counts = {**batch.counts, **counted_fields("column", self.reader.names_in(content, records))}
        lines = self.reader.lines_of(content) if self.skips else None
        batch = batch._replace(done=done, lines=lines, counts=counts)
        for step in self.steps:
            batch = step(batch)
        return batch

    def _first_fault(self, records: BlockRecords, fault: DocumentError) -> DocumentError:
        """Find the first unusable record. `fault` is one error; an earlier record may fail a later check."""
        while 0 < fault.row < len(records):
            records = _slice(records, 0, fault.row)
            try:
                self._with_kept(self.decode(records), records)
            except DocumentError as earlier:
                fault = earlier
        fault.of_record = bool(self.numbers_documents)
        return fault

    def _usable(self, records: BlockRecords, faults: Faults) -> Batch:
        """Decode the usable records. The errors of the others are added to `faults`."""
        parts = [*self._parts(records, 0, faults)]
        if not isinstance(records, pa.RecordBatch):  # values of rejected records may have any type
            records = [{} if row in faults else record for row, record in enumerate(records)]
        return self._with_kept(joined_batches(parts), records)

    def _parts(self, records: BlockRecords, first: int, faults: Faults) -> Iterator[Batch]:
        """Yield the documents of records; `first` is the number of the first record in its block.

        If decoding fails, the records are halved again and again, so one fault costs few attempts.
        """
        count = len(records)
        if not faults.keys() & range(first, first + count):
            try:
                batch = self._with_kept(self.decode(records), records)
                numbers = np.arange(count) if batch.records is None else batch.records
                names = (*self.empty.extra, *(batch.extra.keys() & {LOSS_WEIGHTS}))
                yield batch._replace(records=first + numbers, extra={name: batch.extra[name] for name in names})
                return
            except DocumentError as fault:
                if count == 1 and fault.reason is None:
                    raise fault.at(first) from None
                if count == 1:
                    faults[first] = fault.at(first)
        if count == 1:
            yield self.empty._replace(records=np.full(len(self.empty.input_ids), first))
        elif count:
            half = count // 2
            yield from self._parts(_slice(records, 0, half), first, faults)
            yield from self._parts(_slice(records, half, count), first + half, faults)

    def _with_kept(self, batch: Batch, records: BlockRecords) -> Batch:
        """Add columns that are kept unchanged, and document numbers if a record makes several documents."""
        fault = None if self.fault_in is None else self.fault_in(batch)
        if fault is not None:
            raise fault if batch.records is None else fault.at(int(batch.records[fault.row]))
        extra: dict[str, pa.Array] = dict.fromkeys(self.extra) | batch.extra  # keeps the order of columns
        for name in (name for name in self.extra if name not in batch.extra):
            extra[name] = values_of_column(records, name)
            if batch.records is not None and len(batch.records) > len(records):
                extra[name] = extra[name].take(as_arrow(batch.records))
        if self.numbers_documents:
            assert batch.records is not None
            owners = batch.records  # ascending; the documents of each are numbered from 0
            numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
            extra[self.numbers_documents] = as_arrow(numbers.astype(np.int32))
        return batch._replace(extra=extra)

    def _numbered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches. In a DocumentError, the index in the batch becomes an index and a location in the input."""
        row = records = 0
        try:
            for batch in batches:
                yield batch
                row += len(batch.input_ids)
                records += batch.record_count
        except DocumentError as fault:
            fault = fault.at(row + fault.row)
            fault.place = self.reader.place(records + fault.row - row) if fault.of_record else self.place(fault.row)
            raise fault from None

    def place(self, row: int) -> str:
        """Return the location of a document; only the file if records make any number of documents."""
        return self.file.name if self.numbers_documents else self.reader.place(row)


Input: TypeAlias = DecodedInput | MappedLists
"""A file or a dataset in memory, opened as documents in memory or as documents to decode."""


def open_lists(lists: Lists, columns: Columns, *, in_place: bool, skips: bool) -> Input:
    """Return the token lists of a file as an input.

    Args:
        lists: lists of the file.
        columns: columns to read.
        in_place: whether lists in memory are used there, without applying masks; values of JSON are decoded anyway.
        skips: whether unusable documents are rejected; all lists are then decoded.
    """
    if lists.store is not None and in_place and not skips:
        mapped = MappedLists(reader=lists.reader, stores=(lists.store,), columns=columns, labels=bool(lists.has_labels))
        if not any(map(holds_json, mapped.declared_types.values())):
            return mapped
    return decoded_lists(lists, columns, makes_labels=not {*columns.masks} <= {ATTENTION}, skips=skips)


def decoded_lists(lists: Lists, columns: Columns, *, makes_labels: bool, skips: bool) -> DecodedInput:
    """Return token lists as an input that checks them and applies masks. `makes_labels`: masks mark trained tokens.

    Without documents, it is unknown whether there are labels.
    """
    has_labels = lists.has_labels
    labeled = has_labels if has_labels is None else has_labels or makes_labels
    ends = as_arrow(np.zeros(2, np.int32))
    nothing = pa.ListArray.from_arrays(ends, pa.nulls(0))  # pa.array would import pandas
    empty = {name: nothing for name in columns.per_token if name not in columns.masks}
    for name, width in columns.widths.items():
        empty[name] = pa.ListArray.from_arrays(ends, pa.nulls(0, pa.list_(pa.null(), width)))
    return DecodedInput(
        reader=lists.reader,
        needed=tuple(dict.fromkeys(columns.wanted(has_labels=bool(has_labels)))),
        extra=tuple(name for name in columns.extra if name not in columns.masks),
        decode=partial(decode_lists, columns=columns, has_labels=bool(has_labels), makes_labels=bool(labeled)),
        empty=Batch(nothing, nothing if labeled else None, 0, empty),
        is_slow=not isinstance(lists.reader.fields, pa.Schema),
        has_labels=labeled,
        masks=columns.masks,
        skips=skips,
    )


def all_in_place(input_: Input, names: Sequence[str], test: Callable[..., bool]) -> bool:
    """Whether a test holds for the columns `names` of every record batch.

    Returns False unless they are mapped and local. Lists in object storage are not read: each rank would read all of
    them, whereas ranks share the work of decoding.
    """
    if not isinstance(input_, MappedLists) or isinstance(input_.file.path, RemotePath):
        return False
    with reading(input_.file.name), suppress(ValueError, AssertionError, DocumentError):  # raised later, with its place
        return all(test(*arrays) for arrays in input_.arrays(*names))
    return False


_SAMPLED = 1 << 16  # number of tokens sampled to determine values per token


def usual_widths(inputs: Sequence[Input], names: Sequence[str]) -> dict[str, int]:
    """Return the usual number of values per token in columns of lists of lists, from a sample of the first tokens."""
    found: dict[str, int] = {}  # 0 for lists of numbers
    for input_ in inputs:
        flat = [name for name, kind in input_.declared_types.items() if not is_nested(plain_type(kind))]
        missing = [name for name in names if name not in (*found, *flat)]
        with reading(input_.file.name), suppress(DocumentError):  # raised again when all documents are read
            for values in input_.values(missing) if missing else ():
                for name, chunk in values.items():
                    sample = values_of(chunk)[:_SAMPLED]
                    lengths = list_lengths(sample) if is_nested(chunk.type) else np.zeros(len(sample), np.int64)
                    lengths = lengths[(lengths > 0) | (not is_nested(chunk.type))]
                    if len(lengths) and name not in found:
                        found[name] = statistics.mode(lengths.tolist())
                if found.keys() >= {*missing}:
                    break
    return {name: found[name] for name in names if found.get(name)}


def check_types(owner: str, names: Sequence[str], inputs: Sequence[Input], numbers: Sequence[str]) -> None:
    """Raise a SourceError if the types that files declare for extra columns do not fit together.

    Files that stay mapped need the same type; other files need a common type. Columns in `numbers` must be whole
    numbers; their values are checked when rows are planned.
    """
    types = [
        (each.file.name, {name: plain_type(kind) for name, kind in each.declared_types.items()}) for each in inputs
    ]
    in_place = {each.file.name for each in inputs if isinstance(each, MappedLists)}
    for name in names:
        declared = [(file, kinds[name]) for file, kinds in types if name in kinds]
        there, kind = "", pa.null()
        for file, found in declared:
            joined = join(kind, found)
            if joined is None:
                raise SourceError(f"{owner}: column '{name}' is {kind} in {there}, {found} in {file}; use one type")
            there, kind = file, joined
            if name in numbers and not (pa.types.is_integer(found) or pa.types.is_null(found)):
                raise SourceError(f"{file}: column '{name}' holds {no_number(found)}")
        one_type(owner, name, [(file, found) for file, found in declared if file in in_place])
