"""Rows of documents of many lengths, of which the first may be a tree, for the probe of a training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS, PADDING, TREE, TREE_INPUT_IDS

SHARES = ((8, 4, 2, 2), (1, 10, 5), (16,))
"""Lengths of the documents in each row, in 16ths of a row."""

TREE_SHARES = (2, 2, 1, 1, 2)
TREE_PARENTS = (-1, 0, 0, 2, 2)
"""Lengths and parents of the nodes of a tree, which takes the place of the first document."""


class Part(NamedTuple):
    """A document of the probed rows, or a node of their tree."""

    places: NDArray[np.int64]
    """Places of its tokens in the rows laid end to end."""

    parent: int
    """Number of the node that it continues; -1 for none."""


def make_parts(max_len: int, *, has_tree: bool) -> Iterator[Part]:
    """Yield the documents of rows of `max_len` tokens; if the first is a tree, yield its nodes instead."""
    for row, shares in enumerate(SHARES):
        parents = [-1] * len(shares)
        if has_tree and not row:
            shares, parents = (*TREE_SHARES, *shares[1:]), [*TREE_PARENTS, *parents[1:]]
        bounds = np.cumsum([0, *shares]) * max_len // sum(shares) + row * max_len
        for first, last, parent in zip(bounds, bounds[1:], parents, strict=False):
            yield Part(np.arange(first, last), parent)


def path_to(parts: Sequence[Part], number: int) -> list[int]:
    """Return the numbers of the nodes from the root of a tree to a node."""
    parent = parts[number].parent
    return [*(path_to(parts, parent) if parent >= 0 else []), number]


def make_rows(
    parts: Sequence[Part],
    tokens: NDArray[np.int64],
    max_len: int,
    *,
    trained: Sequence[int] | None = None,
    alone: int | None = None,
) -> list[dict[str, NDArray[Any]]]:
    """Return rows of these documents as `PackedDataset` has them, given their tokens, end to end.

    Those in `trained` have labels, by default all. With `alone`, there is one document with padding after it.
    """
    rows = _whole_rows(parts, tokens, max_len, range(len(parts)) if trained is None else trained)
    rows = rows if alone is None else [_row_of_path(parts, alone, tokens, max_len)]
    if all(part.parent < 0 for part in parts):
        return rows
    return [_with_tree(row, [] if number or alone is not None else parts) for number, row in enumerate(rows)]


def _whole_rows(
    parts: Sequence[Part], tokens: NDArray[np.int64], max_len: int, trained: Sequence[int]
) -> list[dict[str, NDArray[Any]]]:
    """Return full rows of these documents, as `PackedDataset` has them, with labels for those in `trained`."""
    labels, rows = np.full(len(tokens), NO_LOSS), list[dict[str, NDArray[Any]]]()
    for number in trained:
        places = parts[number].places[1:]
        labels[places] = tokens[places]
    for first in range(0, len(tokens), max_len):
        inside = slice(first, first + max_len)
        roots = [part.places[0] for part in parts if part.parent < 0 and first <= part.places[0] < first + max_len]
        lengths = np.diff([*roots, first + max_len])
        rows.append(_row(tokens[inside], labels[inside], lengths, np.arange(len(roots)) + 100 * len(rows)))
    return rows


def _row_of_path(
    parts: Sequence[Part], number: int, tokens: NDArray[np.int64], max_len: int
) -> dict[str, NDArray[Any]]:
    """Return a row with one document and padding; for a node of a tree, with the untrained nodes above it, too."""
    places = np.concatenate([parts[each].places for each in path_to(parts, number)])
    ids, labels = np.zeros(max_len, np.int64), np.full(max_len, NO_LOSS)
    trained = len(parts[number].places) - 1
    ids[: len(places)] = tokens[places]
    labels[len(places) - trained : len(places)] = ids[len(places) - trained : len(places)]
    lengths = [length for length in (len(places), max_len - len(places)) if length]
    return _row(ids, labels, np.array(lengths), np.array([0, PADDING][: len(lengths)]))


def _row(
    ids: NDArray[np.int64], labels: NDArray[np.int64], lengths: NDArray[np.int64], documents: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    row = {"input_ids": ids, "labels": labels, "seq_lengths": lengths, "doc_ids": documents}
    return row | {"doc_starts": np.zeros(len(lengths), np.int64)}


def _with_tree(row: dict[str, NDArray[Any]], parts: Sequence[Part]) -> dict[str, NDArray[Any]]:
    """Return a row as a dataset of trees has it; its first document has the nodes among `parts`, if any."""
    trees = np.fromiter(([] for _ in row["doc_ids"]), dtype=object, count=len(row["doc_ids"]))
    if parts:
        nodes = zip(parts[: len(TREE_PARENTS)], range(len(TREE_PARENTS)), strict=True)
        trees[0] = [value for part, answer in nodes for value in (len(part.places), part.parent, answer)]
    return {TREE_INPUT_IDS if name == "input_ids" else name: values for name, values in row.items()} | {TREE: trees}
