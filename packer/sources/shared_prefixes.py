"""Documents of a record as trees, in which each beginning that several of them share is stored once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, TREE
from packer.gather.prefix_trees import build_trees
from packer.inputs.documents import LONGEST, Batch
from packer.inputs.list_checks import as_lists, int32_lists

REPEATED, SAVED = "repeated", "saved"
"""Counts of `Batch.counts`: tokens with which documents repeat the beginning of another one of their record, and those
that are left out where trees store them once."""


def numbers_within(records: NDArray[np.int64]) -> pa.Array:
    """Number the documents of each record from 0, int32, given the record of each document, ascending."""
    return as_arrow((np.arange(len(records)) - np.searchsorted(records, records)).astype(np.int32))


def share_prefixes(batch: Batch, *, max_len: int, stored: bool, pairs: bool) -> Batch:
    """Join the documents of each record of a batch of one chunk, which has labels, to trees.

    Trees of several documents have at most `max_len` tokens, so a record may make several; a pair always makes one. If
    they are not `stored`, the tokens that this would save are counted, and the documents stay as they are.
    """
    assert batch.labels is not None, "trees need labels"
    lists, labels = int32_lists(batch.input_ids[0]), int32_lists(batch.labels[0])
    records = np.arange(len(lists)) if batch.records is None else batch.records
    bounds = as_numpy(lists.offsets).astype(np.int64)
    trees = build_trees(
        as_numpy(lists.values),
        as_numpy(labels.values),
        bounds,
        np.searchsorted(records, np.arange(batch.record_count + 1)),
        LONGEST if pairs else max_len,
    )
    counts = {**batch.counts, REPEATED: trees.repeated, SAVED: int(bounds[-1]) - len(trees.input_ids)}
    if not stored:
        return batch._replace(counts=counts)
    extra = {name: [chunks[0].take(as_arrow(trees.documents))] for name, chunks in batch.extra.items()}
    extra[TREE] = [_node_lists(trees.nodes, trees.node_ends)]
    if not pairs:
        extra[ANSWER] = [numbers_within(records[trees.documents])]
    tree_of = {int(records[document]): tree for tree, document in reversed([*enumerate(trees.documents.tolist())])}
    lengths = np.diff(trees.ends, prepend=0)
    rejected = {tree_of[int(records[one.row])]: one for one in batch.rejected}
    return batch._replace(
        input_ids=[_lists(trees.input_ids, lengths)],
        labels=[_lists(trees.labels, lengths)],
        extra=extra,
        counts=counts,
        records=records[trees.documents],
        rejected=tuple(one._replace(row=tree) for tree, one in rejected.items()),
    )


def _lists(values: NDArray[np.int32], lengths: NDArray[np.int64]) -> pa.ListArray:
    return as_lists(as_arrow(np.ascontiguousarray(values)), lengths, pa.list_(pa.int32()))


def _node_lists(nodes: NDArray[np.int32], ends: NDArray[np.int64]) -> pa.ListArray:
    """Return three numbers for each node of each tree; none for a tree of one node, which is an ordinary document."""
    counts = np.diff(ends, prepend=0)
    is_tree = counts > 1
    kept = nodes[np.repeat(is_tree, counts)].reshape(-1)
    return _lists(kept, np.where(is_tree, nodes.shape[1] * counts, 0))
