"""Preference pairs: pair i is document 2i (the chosen answer) and document 2i + 1 (the rejected one)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import strings
from packer.column_names import ROLE, ROLES
from packer.engine import Engine, Threads
from packer.errors import SourceError
from packer.gather import TokenColumn
from packer.progress import Progress, documents_of, silent
from packer.sources.columns.column_types import cast_to_common_type
from packer.sources.columns.list_checks import checked
from packer.sources.decoding.spill import spill_inputs
from packer.sources.documents import Batch, Columns, DocumentError, TokenTable, columns_of_side
from packer.sources.mapped.record_batches import ValueColumn
from packer.sources.rejections import RejectionCollector, joined_sides
from packer.sources.source import Source, indices_need_mapping
from packer.sources.survey import SourceSurvey, source_identity
from packer.stores import AnyPath

_ROLES_TOGETHER = 1 << 16

CheckedBatch = tuple[Batch, NDArray[np.int32]]
"""A batch, and the lengths of its documents, shape (documents,)."""


class Pairs(Source):
    """A source of preference pairs, made from a source of chosen and one of rejected answers.

    Its lists are those of all chosen answers, followed by those of all rejected answers.

    Raises:
        SourceError: only one side has labels, or the sides differ in their number of answers.
    """

    side_count = documents_per_record = len(ROLES)

    def __init__(self, chosen: Source, rejected: Source) -> None:
        if chosen.has_labels != rejected.has_labels:
            has, lacks = ROLES if chosen.has_labels else ROLES[::-1]
            raise SourceError(
                f"{chosen.name}: there is a column {has}_labels and no {lacks}_labels; give labels to both or to none"
            )
        self._sides = chosen, rejected
        columns = chosen.columns
        indices = interleaved(chosen, rejected) if chosen.mapped and rejected.mapped else None
        inputs = (*chosen.inputs, *rejected.inputs)
        super().__init__(chosen.name, inputs, columns, indices, chosen.tokenized, chosen.pad_id, skips=chosen.skips)

    @property
    def order(self) -> NDArray[np.int64] | NDArray[np.uint64]:
        """List of each document, shape (documents,); pairs that must be decoded have to be read first."""
        if self.indices is not None:
            return self.indices
        sides: NDArray[np.int64] = np.arange(sum(count or 0 for count in self._rows)).reshape(2, -1)
        order: NDArray[np.int64] = sides.T.reshape(-1)
        return order

    def columns_of(self, number: int) -> Columns:
        """Return the columns to read from an input: those of its side."""
        return self._sides[number // len(self._sides[0].inputs)].columns

    def tables(self, progress: Progress = silent) -> Iterator[TokenTable]:
        """Yield all documents in order; see `Source.tables`.

        Files that must be decoded are read by two readers in step, one for the chosen and one for the rejected answers.
        """
        if self.mapped:
            yield from super().tables(progress)
            return
        if any(side.indices is not None for side in self._sides):
            raise indices_need_mapping(self.name)
        stage = "decode" if self.tokenized is None else "tokenize"
        files = [input_.file for input_ in self._sides[0].inputs]
        total = sum(file.bytes for file in files)
        pairs = finished = 0
        collectors = RejectionCollector(), RejectionCollector()
        for number, file in enumerate(files):
            row = 0
            try:
                for sides in self._pairs_of(number):
                    table = _paired(*sides, first_document=2 * (pairs + row))
                    for (batch, _), collector in zip(sides, collectors, strict=True):
                        collector.add_batch(pairs + row, batch)
                    row += len(table.lengths) // 2
                    progress(stage, *documents_of(2 * (pairs + row), finished + sides[0][0].done, total))
                    yield table
            except DocumentError as fault:
                raise fault.in_source(2 * pairs + fault.row) from None
            self._rows[number] = self._rows[number + len(files)] = row
            pairs += row
            finished += file.bytes
        self.rejections = joined_sides([collector.finish() for collector in collectors], pairs)

    def _pairs_of(self, number: int) -> Iterator[tuple[CheckedBatch, CheckedBatch]]:
        """Yield the chosen and the rejected answers of the same pairs of an input, read in step.

        Raises:
            DocumentError: a document is invalid. Its index counts the documents of both sides.
        """
        sides = [_numbered(checked(of.inputs[number], of.columns), side) for side, of in enumerate(self._sides)]
        held: list[CheckedBatch | None] = [next(side, None) for side in sides]
        while (chosen := held[0]) is not None and (rejected := held[1]) is not None:
            count = min(len(chosen[1]), len(rejected[1]))
            yield _slice(chosen, 0, count), _slice(rejected, 0, count)
            rest = [_slice(one, count, len(one[1])) for one in (chosen, rejected)]
            held = [one if len(one[1]) else next(side, None) for one, side in zip(rest, sides, strict=True)]
        if held != [None, None]:
            name = self._sides[0].inputs[number].file.name
            raise SourceError(f"{name}: changed while it was read; repeat the same command")

    def describe(self, document: int) -> str:
        """Return the name of a document for messages; see `Source.describe`."""
        return super().describe(document) if self.indices is not None else self._named(document, document // 2)

    def spill(
        self,
        folder: AnyPath,
        progress: Progress = silent,
        *,
        engine: Engine = Threads(),  # noqa: B008 (immutable)
        kinds: Mapping[str, pa.DataType] = {},
    ) -> Source:
        """Decode inputs that cannot be mapped; see `Source.spill`."""
        inputs, _, rejections = spill_inputs(self, folder, progress, engine, kinds=kinds)
        middle = len(self._sides[0].inputs)
        sides = (
            Source(self.name, part, self.stored_columns, side.indices, pad_id=self.pad_id, skips=self.skips)
            for part, side in zip((inputs[:middle], inputs[middle:]), self._sides, strict=True)
        )
        decoded = Pairs(*sides)
        decoded.rejections = rejections
        return decoded

    def survey(
        self,
        progress: Progress = silent,
        *,
        with_extra: bool = False,
        on_table: Callable[[TokenTable], None] = lambda table: None,
    ) -> SourceSurvey:
        """Check every document; see `Source.survey`. Lengths and extra columns are held in memory, unless mapped."""
        if self.mapped:
            return super().survey(progress, with_extra=with_extra, on_table=on_table)
        held: list[NDArray[np.int32]] = []
        columns: defaultdict[str, list[pa.Array]] = defaultdict(list)
        for table in self.tables(progress):
            on_table(table)
            held.append(table.lengths)
            for name in self.columns.extra if with_extra else ():
                assert table.lists is not None
                columns[name].append(table.extra[name].at(table.lists[np.arange(0, len(table.lengths), 2)]))
        if not held:
            raise SourceError(f"{self.name}: empty dataset: 0 documents in {len(self._sides[0].files)} file(s)")
        lengths: NDArray[np.int32] = np.concatenate(held)
        extra = {name: self._of_both_sides(name, chunks) for name, chunks in columns.items()}
        identity = source_identity(self, lengths)
        return SourceSurvey(source=self, identity=identity, lengths_of=lengths.__getitem__, extra=extra)

    def _of_both_sides(self, name: str, chunks: list[pa.Array]) -> pa.ChunkedArray:
        """Return a column with one value per pair as one of all lists: the chosen answers, then the rejected ones.

        Raises:
            SourceError: no type holds all values.
        """
        try:
            return pa.chunked_array(2 * cast_to_common_type(chunks, name))
        except DocumentError as fault:
            raise SourceError(f"{self.describe(2 * fault.row)}: {fault.message}") from None

    def value_columns(self) -> dict[str, ValueColumn]:
        """Return the extra columns, and the role of each list: chosen or rejected."""
        return {**super().value_columns(), ROLE: _roles([sum(rows or 0 for rows in side.rows) for side in self._sides])}


def _numbered(batches: Iterator[CheckedBatch], side: int) -> Iterator[CheckedBatch]:
    """Yield the batches of one side that hold documents; errors get the index among the documents of both sides."""
    try:
        yield from (batch for batch in batches if len(batch[1]))
    except DocumentError as fault:
        raise fault.at(2 * fault.row + side) from None


def _slice(checked_batch: CheckedBatch, start: int, stop: int) -> CheckedBatch:
    batch, lengths = checked_batch
    return batch.slice(start, stop), lengths[start:stop]


def _paired(chosen: CheckedBatch, rejected: CheckedBatch, *, first_document: int) -> TokenTable:
    """Return a table of pairs, given their chosen and their rejected answers."""
    (one, lengths), (other, other_lengths) = chosen, rejected
    count = len(lengths)
    both = {name: [*one.extra[name], *other.extra[name]] for name in one.extra}
    extra = {name: ValueColumn.of_chunks(name, cast_to_common_type(chunks, name)) for name, chunks in both.items()}
    return TokenTable(
        input_ids=TokenColumn.from_arrow([*one.input_ids, *other.input_ids]),
        labels=TokenColumn.from_arrow([*one.labels, *other.labels]) if one.labels and other.labels else None,
        lengths=np.stack([lengths, other_lengths], axis=1).reshape(-1),
        lists=np.arange(2 * count).reshape(2, -1).T.reshape(-1),
        extra={**extra, ROLE: _roles([count, count])},
        first_document=first_document,
    )


def _roles(counts: Sequence[int]) -> ValueColumn:
    """Return the column of roles: "chosen" for the first counts[0] lists, "rejected" for the counts[1] after them."""
    chunks = []
    for role, count in zip(ROLES, counts, strict=True):
        repeated = pa.repeat(strings([role])[0], min(count, _ROLES_TOGETHER))
        chunks += [repeated] * (count // _ROLES_TOGETHER)  # the same array each time
        chunks.append(repeated.slice(0, count % _ROLES_TOGETHER))
    return ValueColumn.of_chunks(ROLE, chunks, pa.string())


def interleaved(chosen: Source, rejected: Source) -> NDArray[np.int64]:
    """Return the list of each document of pairs: 3 chosen and 3 rejected answers -> [0, 3, 1, 4, 2, 5].

    Raises:
        SourceError: the sides differ in their number of answers.
    """
    lists = sum(rows or 0 for rows in chosen.rows), sum(rows or 0 for rows in rejected.rows)
    if lists[0] != lists[1]:
        raise SourceError(f"{chosen.name}: {lists[0]:,} chosen and {lists[1]:,} rejected answers; each pair needs both")
    order = np.arange(lists[0]) if chosen.indices is None else chosen.indices.astype(np.int64)
    indices = np.empty(2 * len(order), np.int64)
    indices[::2], indices[1::2] = order, order + lists[0]
    return indices


def open_pairs(open_side: Callable[[Columns], Source], extra: tuple[str, ...]) -> Pairs:
    """Open a source of pairs, once for each side.

    Args:
        open_side: function that opens the source with the columns of a side.
        extra: further columns to read, with one value per pair.
    """
    return Pairs(*(open_side(columns_of_side(role, extra)) for role in ROLES))
