"""What a batch is made from: rows and raw examples of arrays, lists or tensors, as checked arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError

NEEDED = ("input_ids", "seq_lengths", "doc_ids")
"""Columns of a row that every batch needs; integers in one dimension, as labels are."""


def rows_as_arrays(rows: Any) -> Sequence[Mapping[str, NDArray[Any]]]:
    """Return the rows of a batch with arrays as columns: rows of a PackedDataset as they are, others converted.

    Raises:
        PackerError: there are no rows, a column that is needed is missing, some rows have labels and others do not, or
            tokens or boundaries are not integers in one dimension.
    """
    _check_list(rows, "row")
    has_labels = "labels" in rows[0]
    names = (*NEEDED, "labels") if has_labels else NEEDED
    found = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise PackerError(f"row {number} of the batch is a {type(row).__name__}: hand over rows of packer.load")
        for name in NEEDED:
            if name not in row:
                raise PackerError(
                    f"row {number} of the batch has no column {name}; it has {', '.join(row)}: hand over rows of "
                    "packer.load, in the Hugging Face Trainer with remove_unused_columns=False"
                )
        if ("labels" in row) != has_labels:
            raise PackerError(_uneven_labels("row", number, has_labels))
        if not all(isinstance(values, np.ndarray) for values in row.values()):
            row = {name: _array(values, f"row {number} of the batch has {name}") for name, values in row.items()}
            row |= {name: _objects(row[name]) for name in row if row[name].ndim > 1 and name not in names}
        for name in names:
            _check_integers(row[name], f"row {number} of the batch has {name}")
        found.append(row)
    return found


def examples_as_arrays(
    examples: Sequence[Mapping[str, Any]],
) -> tuple[list[NDArray[np.integer[Any]]], list[NDArray[np.integer[Any]]] | None]:
    """Return (tokens, labels) of raw examples, an array for each; None for labels where no example has any.

    Raises:
        PackerError: there are no examples, one has no tokens, another number of labels than of tokens, or values that
            are not integers in one dimension; or some examples have labels and others do not.
    """
    _check_list(examples, "example")
    has_labels = isinstance(examples[0], Mapping) and "labels" in examples[0]
    tokens, labels = [], []
    for number, example in enumerate(examples):
        name = f"example {number} of the batch"
        if not isinstance(example, Mapping) or "input_ids" not in example:
            keys = (
                f"the keys {', '.join(map(str, example))}" if isinstance(example, Mapping) else type(example).__name__
            )
            raise PackerError(f"{name} has no input_ids, but {keys}: hand over mappings with input_ids")
        if ("labels" in example) != has_labels:
            raise PackerError(_uneven_labels("example", number, has_labels))
        tokens.append(_array(example["input_ids"], f"{name} has input_ids"))
        if not tokens[-1].size:
            raise PackerError(f"{name} has 0 tokens: leave empty examples out")
        _check_integers(tokens[-1], f"{name} has input_ids")
        if not has_labels:
            continue
        if example["labels"] is None:
            raise PackerError(f"{name} has labels None: give one for each token, or leave the key out of all examples")
        labels.append(_array(example["labels"], f"{name} has labels"))
        if labels[-1].ndim == 1 and len(labels[-1]) != len(tokens[-1]):
            raise PackerError(f"{name} has {len(labels[-1])} labels for {len(tokens[-1])} tokens: give one for each")
        _check_integers(labels[-1], f"{name} has labels")
    return tokens, labels if has_labels else None


def _check_list(values: Any, what: str) -> None:
    if isinstance(values, Mapping):
        raise PackerError(f"the batch is one mapping with the keys {', '.join(values)}: hand over a list of {what}s")
    if not len(values):
        raise PackerError(f"there are 0 {what}s: a batch has at least 1")


def _uneven_labels(what: str, number: int, has_labels: bool) -> str:
    has, others = ("no labels", "has") if has_labels else ("labels", "has none")
    return f"{what} {number} of the batch has {has}, {what} 0 {others}: give all of them labels, or none"


def _array(values: Any, what: str) -> NDArray[Any]:
    """Convert a list or a tensor; text, and lists of different lengths, to an array of objects."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return _objects(values)
    except (TypeError, RuntimeError) as error:  # a tensor on a GPU, or of a dtype that numpy lacks
        raise PackerError(f"{what} that numpy cannot read ({error}): hand over lists, arrays or CPU tensors") from error
    return array.astype(object) if array.dtype.kind in "US" else array


def _objects(values: Any) -> NDArray[Any]:
    """A list for each segment, as the rows of a PackedDataset have it: one object each."""
    return np.fromiter(values, dtype=object, count=len(values))


def _check_integers(array: NDArray[Any], what: str) -> None:
    if array.ndim != 1:
        remedy = "give it in one dimension, as values[0]" if array.shape[:1] == (1,) else "give a list of integers"
        raise PackerError(f"{what} of shape {list(array.shape)}: {remedy}")
    if array.dtype.kind not in "iu":
        raise PackerError(f"{what} of type {array.dtype}: give a list of integers")
