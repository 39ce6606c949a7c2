"""Documents of a record joined to trees, which store what they begin with once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, TREE
from packer.inputs.documents import Batch
from packer.inputs.list_checks import as_lists, int32_lists
from packer.token_memory.prefix_trees import build_trees

REPEATED, SAVED = "repeated", "saved"
"""Counts of `Batch.counts`: tokens that repeat the beginning of another document of the record, and tokens that trees
save by storing beginnings once."""


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
