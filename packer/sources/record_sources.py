"""Sources of records that are texts, or several documents, which are joined to trees that store beginnings once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, CONTENT_HASH, TREE
from packer.inputs.column_types import check_types
from packer.inputs.documents import COLUMNS, LONGEST, Batch
from packer.inputs.format_reader import DecodedInput, Reader, Step
from packer.inputs.hugging_face import Found
from packer.inputs.list_checks import BlockRecords, as_lists, int32_lists
from packer.options import ReadOptions
from packer.sources.content_hashes import with_record_hashes
from packer.sources.source import Source
from packer.token_memory.prefix_trees import build_trees

if TYPE_CHECKING:
    from packer.text.text_encoder import Encoder


def source_of_records(
    found: Found,
    readers: Sequence[Reader],
    options: ReadOptions,
    *,
    columns: Sequence[str],
    decode: Callable[[BlockRecords], Batch],
    empty: Batch,
    encoder: Encoder | None = None,
) -> Source:
    """Return a source whose records are decoded each time they are read.

    Args:
        found: what was found.
        readers: readers of the files.
        options: options for reading; kept columns have a value for each document.
        columns: columns that `decode` reads.
        decode: see `DecodedInput.decode`.
        empty: documents of a record that cannot be used.
        encoder: tokenizes texts; without it, a record makes several documents with labels.
    """
    kept, steps = options.value_columns, list[Step]()
    if encoder is None or (encoder.has_labels and encoder.documents_per_record != 1):
        most = LONGEST if options.pairs else options.tree_len  # a pair is never divided
        stored, numbered = options.has_trees, options.numbers_records
        steps.append(partial(share_prefixes, max_len=most, stored=stored, numbered=numbered))
    if options.hashes_records:
        steps.append(partial(with_record_hashes, options=options))
    inputs = tuple(
        DecodedInput(
            reader=reader,
            needed=tuple(dict.fromkeys((*columns, *kept))),
            extra=kept,
            decode=decode,
            empty=empty,
            is_slow=True,
            has_labels=empty.labels is not None,
            steps=tuple(steps),
            numbers_documents=ANSWER if options.numbers_records else "",
            skips=options.on_error == "skip",
        )
        for reader in readers
    )
    check_types(found.name, kept, [(input_.file.name, input_.declared_types) for input_ in inputs])
    made = {ANSWER: options.numbers_records, TREE: options.has_trees, CONTENT_HASH: options.hashes_records}
    extra = (*kept, *empty.extra, *(name for name, is_made in made.items() if is_made))
    return Source(
        name=found.name,
        inputs=inputs,
        columns=COLUMNS._replace(extra=extra),
        encoder=encoder,
        fields=tuple(dict.fromkeys(chain.from_iterable(reader.names for reader in readers))),
        fingerprint=found.fingerprint,
        pad_id=found.pad_id if encoder is None else encoder.pad_id,
    )


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
    # three numbers for each node of each tree; none for an ordinary document, whose only node its first document trains
    nodes = np.diff(trees.node_ends, prepend=0)
    last_answers = np.append(trees.nodes[:, 2], 0)[trees.node_ends - 1]
    firsts = trees.documents - np.searchsorted(records, records[trees.documents])
    is_tree = (nodes > 1) | ((nodes == 1) & (last_answers != firsts))
    kept = trees.nodes[np.repeat(is_tree, nodes)].reshape(-1)
    extra[TREE] = _lists(kept, np.where(is_tree, trees.nodes.shape[1] * nodes, 0))
    if numbered:
        extra[ANSWER] = as_arrow(firsts.astype(np.int32))
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
