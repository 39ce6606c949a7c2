"""Rows of trees, in which shared beginnings of documents are stored once: nodes, and what each token sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.algorithms.index_arrays import cu_seqlens_of
from packer.column_names import ANSWER, PADDING, RECORD_IDS, TREE
from packer.loader.row_segments import LossWeights, RowTokens, check_loss_weights, group_weights

NODE = 3
"""Numbers of a node in the column `tree`: tokens, parent in its tree (-1 for none), document in its record."""


class Node(NamedTuple):
    """A node of a tree."""

    first: int
    """First token in the tree."""

    tokens: int

    parent: int
    """Index in the tree of the node that it continues; -1 for none."""

    answer: int
    """Document of its record that trains tokens of the node."""

    position: int
    """Position of its first token in the documents that it belongs to."""

    depth: int
    """Number of branches between the root and the node."""


def nodes_of(tree: Sequence[int]) -> list[Node]:
    """Return the nodes of a value of the column `tree`; none for an ordinary document."""
    found: list[Node] = []
    numbers = np.reshape(np.array(tree, np.int64), (-1, NODE)).tolist()
    children, first = Counter(parent for _, parent, _ in numbers), 0
    for tokens, parent, answer in numbers:
        position = depth = 0
        if parent >= 0:
            position = found[parent].position + found[parent].tokens
            depth = found[parent].depth + (children[parent] > 1)
        found.append(Node(first, tokens, parent, answer, position, depth))
        first += tokens
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """Nodes of the trees of a batch, in the order of its tokens; an ordinary document, or padding, is one node.

    All arrays are int64 and have the shape (nodes,).
    """

    lengths: NDArray[np.int64]
    """Tokens of each node."""

    parents: NDArray[np.int64]
    """Node of the batch that each node continues; -1 for none."""

    segments: NDArray[np.int64]
    """Segment of the batch that each node is in."""

    answers: NDArray[np.int64]
    """Document of its record that trains tokens of each node; -1 for padding."""

    firsts: NDArray[np.int64]
    """Position of the first token of each node in its documents, which continues that of its parent."""

    @classmethod
    def of(cls, tokens: RowTokens) -> Nodes:
        """Return the nodes of a batch; without the column `tree`, all documents are ordinary ones."""
        found: list[list[int]] = []
        trees = iter(tokens.segment_column(TREE)) if TREE in tokens.rows[0] else repeat(())
        numbers = iter(tokens.segment_column(ANSWER).tolist()) if RECORD_IDS in tokens.rows[0] else repeat(0)
        for segment, (length, key) in enumerate(zip(tokens.lengths.tolist(), tokens.doc_ids.tolist(), strict=True)):
            first, left = len(found), length
            tree, number = ((), -1) if key == PADDING else (next(trees), next(numbers))
            for node in nodes_of(tree):
                parent = first + node.parent if node.parent >= 0 else -1
                found.append([node.tokens, parent, segment, node.answer, node.position])
                left -= node.tokens
            if left:  # an ordinary document, padding, or the alignment after a tree
                found.append([left, -1, segment, number if left == length else -1, 0])
        lengths, parents, segments, answers, firsts = np.array(found, np.int64).reshape(-1, 5).T
        return cls(lengths=lengths, parents=parents, segments=segments, answers=answers, firsts=firsts)

    def positions(self) -> NDArray[np.int64]:
        """Return the position of each token in its document, shape (tokens,)."""
        places: NDArray[np.int64] = np.arange(self.lengths.sum())
        return places + (self.firsts - cu_seqlens_of(self.lengths)[:-1]).repeat(self.lengths)

    def visible_until(self) -> NDArray[np.int64]:
        """Return the place after the last token that sees each token, shape (tokens,).

        Continuations of a node follow it without a gap, so all tokens from k to this place see token k.
        """
        ends, parents = cu_seqlens_of(self.lengths)[1:].tolist(), self.parents.tolist()
        for node in reversed(range(len(ends))):
            if parents[node] >= 0:
                ends[parents[node]] = max(ends[parents[node]], ends[node])
        return np.array(ends, np.int64).repeat(self.lengths)

    def loss_weights(
        self, labels: NDArray[np.integer[Any]], doc_ids: NDArray[np.int64], *, per: LossWeights
    ) -> NDArray[np.float64]:
        """Return the weight of each token, as `token_loss_weights` does, of the separate documents of trees.

        `doc_ids` has the key of the document of each segment. Per "document", all pieces of a split one are averaged
        together.
        """
        check_loss_weights(per)
        owners = doc_ids[self.segments] if per == "document" else self.segments
        _, documents = np.unique(np.stack([owners, self.answers]), axis=1, return_inverse=True)
        return group_weights(labels, documents.reshape(-1).repeat(self.lengths))
