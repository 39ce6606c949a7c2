"""A probe of any training step: compare every document of a batch with itself alone, and beside other documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS, TREE, TREE_INPUT_IDS
from packer.errors import PackerError
from packer.loader.batch_formats import BatchFormat, batch_format
from packer.loader.batch_input import Tensors
from packer.shards.row_format import PADDING

SHARES = ((8, 4, 2, 2), (1, 10, 5), (16,))
"""Lengths of the documents in each row, in 16ths of a row."""

TREE_SHARES = (2, 2, 1, 1, 2)
TREE_PARENTS = (-1, 0, 0, 2, 2)
"""Lengths and parents of the nodes of a tree, which takes the place of the first document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLeaks:
    """Result of `probe`. Differences of losses are shares of the largest loss."""

    moved: Mapping[int, tuple[int, ...]]
    """Other documents whose losses moved, by the document that was changed; numbered through all rows."""

    largest: float
    """Largest change of a loss of another document."""

    differs: tuple[int, ...]
    """Documents whose losses differ from their losses alone."""

    difference: float
    """Largest difference between a loss in the batch and alone."""

    gradients: float | None
    """Norm of the difference between gradients of the batch and of the documents alone, relative to the norm alone.
    None if the losses have no gradients."""

    tolerance: float
    """Largest difference that does not count."""

    longest: int
    """Tokens in the longest document that was probed."""

    @property
    def is_safe(self) -> bool:
        """Whether the batch trained as its documents alone."""
        return not (any(self.moved.values()) or self.differs or (self.gradients or 0) > self.tolerance)

    def __str__(self) -> str:
        """One line: the verdict, and which documents moved."""
        found = [f"{one} moves {', '.join(map(str, others))}" for one, others in self.moved.items() if others]
        if found:
            return f"leaks by up to {self.largest:.1e} of the largest loss: document {'; '.join(found)}"
        if self.differs:
            numbers = ", ".join(map(str, self.differs))
            return f"differs by up to {self.difference:.1e} of the largest loss from documents alone: {numbers}"
        if not self.is_safe:
            return f"leaks in the backward pass: gradients differ from those of documents alone by {self.gradients:.1e}"
        backward = "without gradients" if self.gradients is None else f"gradients by {self.gradients:.1e}"
        return (
            f"safe up to {self.longest:,} tokens: no document moves the losses of another (largest change "
            f"{self.largest:.1e}), and losses differ from those of documents alone by {self.difference:.1e}, {backward}"
        )


class _Part(NamedTuple):
    """A document of the probed rows, or a node of their tree."""

    places: NDArray[np.int64]
    """Places of its tokens in the rows laid end to end."""

    parent: int
    """Number of the node that it continues; -1 for none."""


class _Run(NamedTuple):
    """What a step returned."""

    losses: NDArray[np.float64]
    """Loss of each token."""

    gradients: dict[int, Any]
    """Gradient of the sum of the losses, by the id of each parameter."""


def probe(
    step: Callable[[Any], Any],
    *,
    format: str = "hf",
    max_len: int = 256,
    vocabulary: int = 128,
    tolerance: float = 1e-3,
    mtp: int = 0,
    tensors: Tensors = "torch",
) -> StepLeaks:
    """Test whether documents train in packed batches as alone, in a training step of any trainer and kernel.

    The step runs inside your own job, with its attention, parallelism and precision. It is called with a batch of three
    rows, twice; then with each document alone, and padding after it, which must give the same losses and gradients; and
    with the batch in which one document is changed at a time, which must not change the losses of others. In format
    "tree", a document is a tree, of which each node counts as a document. `packer.attention.probe` and `packer check`
    test Hugging Face models without a step.

        def step(batch):                                     # no dropout, no update of the weights
            logits = model(batch["input_ids"], batch["position_ids"])
            return cross_entropy(logits[0, :-1], batch["labels"][0, 1:], reduction="none")

        print(packer.probe(step, max_len=4096))

    Args:
        step: function that takes a batch as `collate(format=format)` returns it, and returns the loss of every token:
            an array or a tensor with as many values as the batch has tokens, or one less (of the next tokens), the rows
            one after the other. Tokens without a label have loss 0. Gradients are compared if the losses have any.
        format: batch format of the trainer.
        max_len: tokens in a row, at least 32. Documents are of many lengths up to a whole row, so pass the length that
            you train with: longer ones may leak.
        vocabulary: largest token id plus one, at least 3.
        tolerance: smallest difference that counts; rounding in bfloat16 needs about 1e-2.
        mtp: number of extra heads that the batch has `mtp_labels` for, as in `collate`.
        tensors: "torch", or "numpy" for arrays.

    Raises:
        PackerError: max_len or vocabulary is too small, the step returns another number of losses or NaN, or it gives
            other losses for the same batch.
    """
    if max_len < 32 or vocabulary < 3:
        raise PackerError(f"max_len is {max_len} and vocabulary {vocabulary}: give at least 32 and 3")
    parts = list(_make_parts(max_len, has_tree=format == "tree"))
    make = batch_format(format, tensors=tensors, **({"mtp": mtp} if mtp else {}))
    tokens = np.random.default_rng(0).integers(1, vocabulary, len(SHARES) * max_len)

    def run(tokens: NDArray[np.int64], alone: int | None = None) -> _Run:
        rows = _rows(parts, tokens, max_len) if alone is None else [_row_of_path(parts, alone, tokens, max_len)]
        if format == "tree":
            rows = [_with_tree(row, parts if alone is None and not number else []) for number, row in enumerate(rows)]
        return _run(step, rows, make)

    return _compare(run, parts, tokens, tokens % (vocabulary - 1) + 1, tolerance)


def _compare(
    run: Callable[..., _Run],
    parts: Sequence[_Part],
    tokens: NDArray[np.int64],
    others: NDArray[np.int64],
    tolerance: float,
) -> StepLeaks:
    """Compare the batch with its documents alone, and with `others`, other tokens, in one document after the other.

    `run(tokens)` runs the step on all rows, and `run(tokens, alone=number)` on one document.
    """
    together, again = run(tokens), run(tokens).losses
    scale = np.abs(together.losses).max() or 1.0
    if np.abs(together.losses - again).max() > tolerance * scale:
        raise PackerError("the step gives other losses for the same batch: leave out dropout and updates of weights")
    moved, differences, summed = {}, [], dict[int, Any]()
    for number, part in enumerate(parts):
        single = run(tokens, alone=number)
        end = sum(len(parts[each].places) for each in _path(parts, number))
        own = single.losses[end - len(part.places) : end]
        differences.append(np.abs(own - together.losses[part.places]).max() / scale)
        summed |= {name: summed.get(name, 0) + gradient for name, gradient in single.gradients.items()}
        changed = tokens.copy()
        changed[part.places] = others[part.places]
        changes = np.abs(run(changed).losses - together.losses) / scale
        moved[number] = {
            other: changes[each.places].max() for other, each in enumerate(parts) if number not in _path(parts, other)
        }
    return StepLeaks(
        moved={one: tuple(n for n, change in found.items() if change > tolerance) for one, found in moved.items()},
        largest=float(max(max(found.values()) for found in moved.values())),
        differs=tuple(number for number, each in enumerate(differences) if each > tolerance),
        difference=float(max(differences)),
        gradients=relative_difference(together.gradients, summed) if summed else None,
        tolerance=tolerance,
        longest=max(len(part.places) for part in parts),
    )


def _make_parts(max_len: int, *, has_tree: bool) -> Iterator[_Part]:
    """Yield the documents of rows of `max_len` tokens, of which the first may be a tree: then its nodes."""
    for row, shares in enumerate(SHARES):
        parents = [-1] * len(shares)
        if has_tree and not row:
            shares, parents = (*TREE_SHARES, *shares[1:]), [*TREE_PARENTS, *parents[1:]]
        bounds = np.cumsum([0, *shares]) * max_len // sum(shares) + row * max_len
        for first, last, parent in zip(bounds, bounds[1:], parents, strict=False):
            yield _Part(np.arange(first, last), parent)


def _path(parts: Sequence[_Part], number: int) -> list[int]:
    """Return the numbers of the nodes from the root of a tree to a node."""
    parent = parts[number].parent
    return [*(_path(parts, parent) if parent >= 0 else []), number]


def _rows(parts: Sequence[_Part], tokens: NDArray[np.int64], max_len: int) -> list[dict[str, NDArray[Any]]]:
    """Return full rows of these documents, as `PackedDataset` has them."""
    labels, rows = tokens.copy(), list[dict[str, NDArray[Any]]]()
    labels[[part.places[0] for part in parts]] = NO_LOSS
    for first in range(0, len(tokens), max_len):
        inside = slice(first, first + max_len)
        roots = [part.places[0] for part in parts if part.parent < 0 and first <= part.places[0] < first + max_len]
        lengths = np.diff([*roots, first + max_len])
        rows.append(_row(tokens[inside], labels[inside], lengths, np.arange(len(roots)) + 100 * len(rows)))
    return rows


def _row_of_path(
    parts: Sequence[_Part], number: int, tokens: NDArray[np.int64], max_len: int
) -> dict[str, NDArray[Any]]:
    """Return a row of a document alone, and padding; of a tree, of the nodes above a node, which alone is trained."""
    places = np.concatenate([parts[each].places for each in _path(parts, number)])
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


def _with_tree(row: dict[str, NDArray[Any]], parts: Sequence[_Part]) -> dict[str, NDArray[Any]]:
    """Return a row as one of a dataset of trees, whose first document has the nodes among `parts`, if any."""
    trees = np.fromiter(([] for _ in row["doc_ids"]), dtype=object, count=len(row["doc_ids"]))
    if parts:
        nodes = zip(parts[: len(TREE_PARENTS)], range(len(TREE_PARENTS)), strict=True)
        trees[0] = [value for part, answer in nodes for value in (len(part.places), part.parent, answer)]
    return {TREE_INPUT_IDS if name == "input_ids" else name: values for name, values in row.items()} | {TREE: trees}


def _run(step: Callable[[Any], Any], rows: Sequence[Mapping[str, NDArray[Any]]], make: BatchFormat) -> _Run:
    """Run a step, and return the losses of all tokens and the gradients of their sum."""
    found, gradients = step(make(rows)), dict[int, Any]()
    if hasattr(found, "detach"):
        gradients = _gradients(found)
        found = found.detach().cpu().double()
    values, width = np.asarray(found, np.float64).ravel(), len(rows[0]["labels"])
    whole = len(rows) * width
    real = sum(int(row["seq_lengths"][row["doc_ids"] != PADDING].sum()) for row in rows)
    if not np.isfinite(values).all():
        raise PackerError("the step returns a loss that is not a number: give tokens without a label the loss 0")
    if len(values) in (real - 1, whole - 1):  # of the next tokens, like the rows in the following case
        values = np.concatenate([[0.0], values])
    elif len(values) == whole - len(rows):
        values = np.pad(values.reshape(len(rows), -1), [(0, 0), (1, 0)]).ravel()
    if len(values) not in (real, whole):
        raise PackerError(f"the step returns {len(values):,} losses of {whole:,} tokens: return one for each")
    return _Run(values, gradients)


def _gradients(losses: Any) -> dict[int, Any]:
    """Return the gradients of all parameters that the losses depend on; leaves `parameter.grad` as it is."""
    if losses.grad_fn is None:
        return {}
    import torch

    seen, left, parameters = {losses.grad_fn}, [losses.grad_fn], dict[int, Any]()
    while left:
        node = left.pop()
        if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            parameters[id(node.variable)] = node.variable
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        left += following
    found = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


def relative_difference(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> float:
    """Return the norm of the difference of all tensors over the norm of the expected ones.

    Tensors are compared by name; one that exists only once is compared with zeros.
    """
    exact = [{name: tensor.double() for name, tensor in each.items()} for each in (found, expected)]
    squares = sum(float((exact[0].get(n, 0) - exact[1].get(n, 0)).square().sum()) for n in {*found, *expected})
    return math.sqrt(squares / (sum(float(tensor.square().sum()) for tensor in exact[1].values()) or 1.0))
