"""Documents with shared beginnings, joined into trees in which each shared run of tokens is stored once.

A tree is stored as *nodes*, one after another, each before the nodes that continue it (depth first). A node is a run of
tokens with a parent: the node that the run continues. A token sees the tokens before it in its node, and all tokens of
the nodes on the way to the root.

The next token after a shared run differs between the continuations of the run. The last token of the run is therefore
not stored with the run, but at the beginning of each continuation. As in any row, the loss of each token thus depends
on the token stored before it. A token that several documents train is not shared, so that each of these documents
counts.

Example: [1, 2, 3, 4] and [1, 2, 3, 7, 8] become the nodes [1, 2] without a parent, and [3, 4] and [3, 7, 8], which both
continue the first node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.jit import jit_if_large
from packer.column_names import NO_LOSS


class Trees(NamedTuple):
    """Trees of the documents of several records, in the order of the records."""

    input_ids: NDArray[np.int32]
    """Shape (tokens,): tokens of all trees."""

    labels: NDArray[np.int32]
    """Shape (tokens,): labels, not shifted; -100 at the first token of a node that is not stored after its parent."""

    ends: NDArray[np.int64]
    """Shape (trees,): number of tokens up to the end of each tree."""

    nodes: NDArray[np.int32]
    """Shape (nodes, 3): number of tokens; index of the parent in its tree, or -1; and a document.

    The document is counted within its record. It trains tokens of the node. If no document does, it is the first
    document with this node.
    """

    node_ends: NDArray[np.int64]
    """Shape (trees,): number of nodes up to the end of each tree."""

    documents: NDArray[np.int64]
    """Shape (trees,): first document of each tree."""

    repeated: int
    """Number of tokens with which documents repeat the beginning of an earlier document of their tree."""


class _TokenLists(NamedTuple):
    """Documents of all records: document d has the tokens bounds[d] to bounds[d + 1] - 1."""

    input_ids: NDArray[np.int32]  # (tokens,)
    labels: NDArray[np.int32]  # (tokens,)
    bounds: NDArray[np.int64]  # (documents + 1,)


class _Prefixes(NamedTuple):
    """Prefix tree of the documents of a record."""

    runs: NDArray[np.int64]  # (runs, 8) nodes, see below
    owners: NDArray[np.int64]  # (tokens,) document that trains each token of the runs; -1 if none does


# Columns of `runs`: document, first token and end of the run in it; first child, last child and next sibling (-1 for
# none); parent; and index of the last node that the run was written as.
_DOCUMENT, _BEGIN, _END, _CHILD, _LAST, _NEXT, _PARENT, _WRITTEN = range(8)


class _Forest(NamedTuple):
    """Output arrays for the trees of all records; see `Trees`."""

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    nodes: NDArray[np.int32]
    trees: NDArray[np.int64]  # (documents, 3) tokens and nodes up to the end of each tree, and its first document
    counts: NDArray[np.int64]  # (4,) tokens, nodes, trees and repeated tokens so far


_TOKENS, _NODES, _TREES, _REPEATED = range(4)


def build_trees(
    input_ids: NDArray[np.int32],
    labels: NDArray[np.int32],
    bounds: NDArray[np.int64],
    first_documents: NDArray[np.int64],
    max_len: int,
) -> Trees:
    """Join the documents of each record into a tree, or into several if it would have more than `max_len` tokens.

    Args:
        input_ids: tokens of all documents, shape (tokens,).
        labels: their labels, not shifted, -100 at tokens that are not trained.
        bounds: document d has the tokens bounds[d] to bounds[d + 1] - 1.
        first_documents: shape (records + 1,): record r has the documents first_documents[r] to
            first_documents[r + 1] - 1, at least one.
        max_len: maximum number of tokens in a tree of several documents.
    """
    tokens, documents = len(input_ids), len(bounds) - 1
    runs = np.empty((2 * int(np.diff(first_documents).max(initial=1)), 8), np.int64)
    out = _Forest(
        input_ids=np.empty(tokens, np.int32),
        labels=np.empty(tokens, np.int32),
        nodes=np.empty((tokens, 3), np.int32),
        trees=np.empty((documents, 3), np.int64),
        counts=np.zeros(4, np.int64),
    )
    prefixes = _Prefixes(runs, np.empty(tokens, np.int64))
    _build(_TokenLists(input_ids, labels, bounds), first_documents, max_len, prefixes, out)
    used, nodes, trees, repeated = out.counts.tolist()
    ends, node_ends, first = np.ascontiguousarray(out.trees[:trees].T)
    return Trees(
        input_ids=out.input_ids[:used],
        labels=out.labels[:used],
        ends=ends,
        nodes=out.nodes[:nodes],
        node_ends=node_ends,
        documents=first,
        repeated=repeated,
    )


@jit_if_large
def _build(
    documents: _TokenLists, first_documents: NDArray[np.int64], max_len: int, out_prefixes: _Prefixes, out: _Forest
) -> None:
    """Build the trees of all records. `out_prefixes` is scratch space."""
    bounds, runs, counts = documents.bounds, out_prefixes.runs, out.counts
    for record in range(len(first_documents) - 1):
        first, last = first_documents[record], first_documents[record + 1]
        used, size, roots, begun = np.int64(0), np.int64(0), np.int64(-1), first
        for document in range(first, last):
            length = bounds[document + 1] - bounds[document]
            run, matched = _matched(documents, out_prefixes, roots, document)
            is_branch = matched > 0 and matched < length and (matched < runs[run, _END] or runs[run, _CHILD] >= 0)
            grown = size + length - matched + is_branch
            if document > begun and grown > max_len:
                _write(documents, first, begun, out_prefixes, roots, out)
                used, roots, begun, matched, run, grown = np.int64(0), np.int64(-1), document, np.int64(0), -1, length
            counts[_REPEATED] += matched
            used, roots = _insert(documents, out_prefixes, used, roots, run, document, matched)
            size = grown
        _write(documents, first, begun, out_prefixes, roots, out)


@jit_if_large
def _matched(documents: _TokenLists, prefixes: _Prefixes, roots: int, document: int) -> tuple[int, int]:
    """Return the last run that a document shares with earlier documents (-1 if none), and how many tokens it shares."""
    ids, labels, bounds = documents
    runs, owners = prefixes
    start = bounds[document]
    length = bounds[document + 1] - start
    place, found, child = np.int64(0), np.int64(-1), np.int64(roots)
    while child >= 0 and place < length:
        other = bounds[runs[child, _DOCUMENT]]
        end = min(length, runs[child, _END])
        at = place
        while at < end and ids[other + at] == ids[start + at]:
            if owners[other + at] >= 0 and labels[start + at] != NO_LOSS:
                break
            at += 1
        if at == place:
            child = runs[child, _NEXT]
            continue
        place, found = at, child
        if at < runs[child, _END]:
            break
        child = runs[child, _CHILD]
    return found, place


@jit_if_large
def _insert(
    documents: _TokenLists, out: _Prefixes, used: int, roots: int, run: int, document: int, matched: int
) -> tuple[int, int]:
    """Add a document that shares `matched` tokens, the last of them in `run`. Returns (number of runs, first root)."""
    labels, bounds = documents.labels, documents.bounds
    runs, owners = out
    start = bounds[document]
    length = bounds[document + 1] - start
    if matched < length and run >= 0 and matched < runs[run, _END]:  # splits the run: its end becomes a separate run
        runs[used] = runs[run]
        runs[used, _BEGIN], runs[used, _NEXT], runs[used, _PARENT] = matched, -1, run
        child = runs[used, _CHILD]
        while child >= 0:
            runs[child, _PARENT] = used
            child = runs[child, _NEXT]
        runs[run, _END], runs[run, _CHILD], runs[run, _LAST] = matched, used, used
        used += 1
    above = run
    while above >= 0:
        other = bounds[runs[above, _DOCUMENT]]
        for at in range(runs[above, _BEGIN], min(runs[above, _END], matched)):
            if labels[start + at] != NO_LOSS:
                owners[other + at] = document
        above = runs[above, _PARENT]
    if matched == length and (length > 0 or roots >= 0):
        return used, roots
    for at in range(matched, length):
        owners[start + at] = document if labels[start + at] != NO_LOSS else -1
    runs[used, _DOCUMENT], runs[used, _BEGIN], runs[used, _END] = document, matched, length
    runs[used, _CHILD], runs[used, _LAST], runs[used, _NEXT], runs[used, _PARENT] = -1, -1, -1, run
    if run >= 0:
        if runs[run, _CHILD] < 0:
            runs[run, _CHILD] = used
        else:
            runs[runs[run, _LAST], _NEXT] = used
        runs[run, _LAST] = used
        return used + 1, roots
    if roots < 0:
        return used + 1, used
    sibling = roots
    while runs[sibling, _NEXT] >= 0:
        sibling = runs[sibling, _NEXT]
    runs[sibling, _NEXT] = used
    return used + 1, roots


@jit_if_large
def _write(documents: _TokenLists, first: int, begun: int, prefixes: _Prefixes, roots: int, out: _Forest) -> None:
    """Write a tree as nodes, parents before children. Each node is trained by at most one document.

    first: first document of the record. begun: first document of the tree.
    """
    ids, labels, bounds = documents
    runs, owners = prefixes
    nodes, counts = out.nodes, out.counts
    run, first_node = np.int64(roots), counts[_NODES]
    while run >= 0:
        document, parent = runs[run, _DOCUMENT], runs[run, _PARENT]
        begin, end, node = runs[run, _BEGIN], runs[run, _END], np.int64(-1)
        is_copied = False  # whether the node begins with a copy of the parent's last token, as another node does too
        if parent >= 0:
            node = runs[parent, _WRITTEN]
            if runs[parent, _CHILD] != runs[parent, _LAST]:
                begin -= 1
                is_copied = runs[parent, _CHILD] != run
        if runs[run, _CHILD] != runs[run, _LAST]:
            end -= 1
        trains, opened = np.int64(-1), False
        for at in range(begin, end):
            holder = runs[parent, _DOCUMENT] if at < runs[run, _BEGIN] else document
            owner = owners[bounds[holder] + at]
            if at == begin and (is_copied or node < 0):
                owner = -1
            if not opened or (owner >= 0 and trains >= 0 and owner != trains):
                nodes[counts[_NODES], 0], nodes[counts[_NODES], 1], nodes[counts[_NODES], 2] = 0, node, document - first
                node, trains, opened = counts[_NODES] - first_node, np.int64(-1), True
                counts[_NODES] += 1
            if owner >= 0:
                trains = owner
                nodes[counts[_NODES] - 1, 2] = owner - first
            nodes[counts[_NODES] - 1, 0] += 1
            out.input_ids[counts[_TOKENS]] = ids[bounds[holder] + at]
            out.labels[counts[_TOKENS]] = labels[bounds[owner] + at] if owner >= 0 else NO_LOSS
            counts[_TOKENS] += 1
        runs[run, _WRITTEN] = node
        if runs[run, _CHILD] >= 0:
            run = runs[run, _CHILD]
            continue
        while run >= 0 and runs[run, _NEXT] < 0:
            run = runs[run, _PARENT]
        if run >= 0:
            run = runs[run, _NEXT]
    tree = counts[_TREES]
    out.trees[tree, 0], out.trees[tree, 1], out.trees[tree, 2] = counts[_TOKENS], counts[_NODES], begun
    counts[_TREES] += 1


@jit_if_large
def first_wrong_tree(
    nodes: NDArray[np.int32],
    ends: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    labels: NDArray[np.int32],
) -> int:
    """Return the first segment whose nodes do not form a tree, or -1.

    In a valid tree, the lengths of the nodes add up to the length of the segment. Each node continues an earlier node.
    All nodes in between continue that earlier node too, directly or indirectly. If a node is not stored after its
    parent, its first token has no loss. A segment may have no nodes.

    Args:
        nodes: int32, shape (nodes, 3), as in `Trees`.
        ends: shape (segments,): number of nodes up to the end of each segment.
        lengths: shape (segments,): tokens of each segment.
        places: shape (segments,): index in `labels` of the first token of each segment.
        labels: labels of all rows, one row after another.
    """
    first = np.int64(0)
    for segment in range(len(ends)):
        place, last = places[segment], ends[segment]
        end = place + lengths[segment]
        for node in range(first, last):
            length, parent = nodes[node, 0], nodes[node, 1]
            above = np.int64(node - first - 1)
            if length < 1 or nodes[node, 2] < 0 or parent < -1 or parent > above or place + length > end:
                return segment
            if parent != above and labels[place] != NO_LOSS:
                return segment
            while above > parent:
                above = np.int64(nodes[first + above, 1])
            if above != parent:
                return segment
            place += length
        if last > first and place != end:
            return segment
        first = last
    return -1
