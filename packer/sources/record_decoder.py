"""Decode records to documents, leave out records that cannot be used, and join documents to trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, TREE
from packer.inputs.documents import Batch, DocumentError, joined_batches
from packer.inputs.format_reader import Block, BlockRecords, DecodedInput, values_of_column
from packer.inputs.list_checks import Faults, as_lists, int32_lists
from packer.token_memory.prefix_trees import build_trees


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Decodes blocks of records to documents and the columns that are kept of the records."""

    input: DecodedInput
    """The input, which says whether `answer` numbers the documents of its records."""
    decode: Callable[[BlockRecords], Batch]
    """Function to a batch, with `records`; its DocumentErrors have the number of a record."""
    empty: Batch
    """Takes the place of the documents of a record that cannot be used."""
    skips: bool
    """Whether records that cannot be used are rejected."""

    def __call__(self, block: tuple[Block, int]) -> Batch:
        """Decode a block."""
        content, done = block
        reader = self.input.reader
        records, faults = reader.records(content, self.input.needed)
        try:
            batch, kept = self._decoded(records, faults)
        except DocumentError as fault:  # with the number of its record
            fault.of_record = self.input.numbers_documents
            raise
        assert batch.records is not None
        if len(batch.records) > len(records):
            kept = {name: values.take(as_arrow(batch.records)) for name, values in kept.items()}
        extra = kept | batch.extra
        if self.input.numbers_documents:
            extra[ANSWER] = numbers_within(batch.records)
        rejected = tuple(faults[row].at(at) for at, row in enumerate(batch.records.tolist()) if row in faults)
        lines = reader.lines_of(content) if self.skips else None
        return batch._replace(done=done, extra=extra, rejected=rejected, lines=lines)

    def _decoded(self, records: BlockRecords, faults: Faults) -> tuple[Batch, dict[str, pa.Array]]:
        """Decode records at once, or one by one if some cannot be used; their errors are added to `faults`.

        Returns the documents and the kept columns. Raises a DocumentError if values of a kept column have no common
        type.
        """
        try:
            if faults:
                raise faults[min(faults)]
            return self.decode(records), self._kept(records)
        except DocumentError:
            if not self.skips:
                raise
        parts = []
        for row in range(len(records)):
            one = records.slice(row, 1) if isinstance(records, pa.RecordBatch) else records[row : row + 1]
            part = self.empty
            try:
                if row not in faults:
                    self._kept(one)
                    part = self.decode(one)
            except DocumentError as fault:
                if fault.reason is None:
                    raise fault.at(row) from None
                faults[row] = fault
            parts.append(part._replace(records=np.full(len(part.input_ids), row)))
        if not isinstance(records, pa.RecordBatch):  # values of rejected records may have any type
            records = [{} if row in faults else record for row, record in enumerate(records)]
        return joined_batches(parts), self._kept(records)

    def _kept(self, records: BlockRecords) -> dict[str, pa.Array]:
        return {column: values_of_column(records, column) for column in self.input.kept}


REPEATED, SAVED = "repeated", "saved"
"""Counts of `Batch.counts`: tokens that repeat the beginning of another document of the record, and tokens that trees
save by storing beginnings once."""


def numbers_within(records: NDArray[np.int64]) -> pa.Array:
    """Number the documents of each record from 0, int32, given the record of each document, ascending."""
    return as_arrow((np.arange(len(records)) - np.searchsorted(records, records)).astype(np.int32))


def share_prefixes(batch: Batch, *, max_len: int, stored: bool, numbered: bool = True) -> Batch:
    """Join the documents of each record of a batch, which has labels, to trees.

    Trees of several documents have at most `max_len` tokens, so a record may make several, which `answer` numbers if
    they are `numbered`. If they are not `stored`, the tokens that this would save are counted, and the documents stay
    as they are.
    """
    assert batch.labels is not None, "trees need labels"
    lists, labels = int32_lists(batch.input_ids), int32_lists(batch.labels)
    records = np.arange(len(lists)) if batch.records is None else batch.records
    bounds = as_numpy(lists.offsets).astype(np.int64)
    trees = build_trees(
        as_numpy(lists.values),
        as_numpy(labels.values),
        bounds,
        np.searchsorted(records, np.arange(batch.record_count + 1)),
        max_len,
    )
    counts = {**batch.counts, REPEATED: trees.repeated, SAVED: int(bounds[-1]) - len(trees.input_ids)}
    if not stored:
        return batch._replace(counts=counts)
    extra = {name: values.take(as_arrow(trees.documents)) for name, values in batch.extra.items()}
    # three numbers for each node of each tree, none for a tree of one node, which is an ordinary document
    nodes = np.diff(trees.node_ends, prepend=0)
    is_tree = nodes > 1
    kept = trees.nodes[np.repeat(is_tree, nodes)].reshape(-1)
    extra[TREE] = _lists(kept, np.where(is_tree, trees.nodes.shape[1] * nodes, 0))
    if numbered:
        first_of_records = np.searchsorted(records, records[trees.documents])
        extra[ANSWER] = as_arrow((trees.documents - first_of_records).astype(np.int32))
    tree_of = {int(records[document]): tree for tree, document in reversed([*enumerate(trees.documents.tolist())])}
    lengths = np.diff(trees.ends, prepend=0)
    rejected = {tree_of[int(records[one.row])]: one for one in batch.rejected}
    return batch._replace(
        input_ids=_lists(trees.input_ids, lengths),
        labels=_lists(trees.labels, lengths),
        extra=extra,
        counts=counts,
        records=records[trees.documents],
        rejected=tuple(one.at(tree) for tree, one in rejected.items()),
    )


def _lists(values: NDArray[np.int32], lengths: NDArray[np.int64]) -> pa.ListArray:
    return as_lists(as_arrow(np.ascontiguousarray(values)), lengths, pa.list_(pa.int32()))
