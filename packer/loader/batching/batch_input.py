"""Input of a batch: rows or raw examples, as arrays, lists or tensors, are checked and become integer arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.loader.row_segments import Rows

REQUIRED = ("input_ids", "seq_lengths", "doc_ids")
"""Columns that every row must have; like labels, they hold integers in one dimension."""


def rows_as_arrays(rows: Any) -> Rows:
    """Return the rows of a batch with arrays as columns; rows of a PackedDataset are returned as they are.

    Raises:
        PackerError: there are no rows, a required column is missing, only some rows have labels, or a required
            column does not hold integers in one dimension.
    """
    _check_list(rows, "row")
    has_labels = "labels" in rows[0]
    names = (*REQUIRED, "labels") if has_labels else REQUIRED
    found = []
    for number, row in enumerate(rows):
        where = f"row {number} of the batch"
        if not isinstance(row, Mapping):
            raise PackerError(f"{where} is of type {type(row).__name__}: pass rows of packer.load")
        for name in REQUIRED:
            if name not in row and name == "input_ids" and "doc_starts" in row:
                raise PackerError(
                    f"{where} has no tokens, because the dataset is an index: name the dataset that was packed, as in "
                    "packer.load(path, source=...)"
                )
            if name not in row:
                raise PackerError(
                    f"{where} has no column {name}, only {', '.join(row)}: pass rows of packer.load; in the "
                    "Hugging Face Trainer, set remove_unused_columns=False"
                )
        _check_labels_alike("row", number, row, has_labels)
        if not all(isinstance(values, np.ndarray) for values in row.values()):
            row = {name: _array(values, f"{where} has {name}") for name, values in row.items()}
            row |= {name: _objects(row[name]) for name in row if row[name].ndim > 1 and name not in names}
        for name in names:
            _check_integers(row[name], f"{where} has {name}")
        found.append(row)
    return found


def examples_as_arrays(
    examples: Sequence[Mapping[str, Any]],
) -> tuple[list[NDArray[np.integer[Any]]], list[NDArray[np.integer[Any]]] | None]:
    """Return (tokens, labels) of raw examples, one array per example; labels is None if no example has any.

    Raises:
        PackerError: there are no examples, only some of them have labels, or one has no tokens, another number of
            labels than of tokens, or values that are not integers in one dimension.
    """
    _check_list(examples, "example")
    has_labels = isinstance(examples[0], Mapping) and "labels" in examples[0]
    tokens, labels = [], []
    for number, example in enumerate(examples):
        where = f"example {number} of the batch"
        if not isinstance(example, Mapping):
            raise PackerError(f"{where} is of type {type(example).__name__}: pass mappings with input_ids")
        if "input_ids" not in example:
            raise PackerError(
                f"{where} has no input_ids, only {', '.join(map(str, example))}: pass mappings with input_ids"
            )
        _check_labels_alike("example", number, example, has_labels)
        ids = _array(example["input_ids"], f"{where} has input_ids")
        if not ids.size:
            raise PackerError(f"{where} has 0 tokens: leave empty examples out")
        _check_integers(ids, f"{where} has input_ids")
        tokens.append(ids)
        if has_labels:
            labels.append(_labels_of(example["labels"], len(ids), where))
    return tokens, labels if has_labels else None


def _labels_of(values: Any, tokens: int, where: str) -> NDArray[np.integer[Any]]:
    """Return the labels of an example with so many tokens as a checked array."""
    if values is None:
        raise PackerError(f"{where} has labels None: pass one per token, or leave the key out of all examples")
    labels = _array(values, f"{where} has labels")
    if labels.ndim == 1 and len(labels) != tokens:
        raise PackerError(f"{where} has {len(labels)} labels for {tokens} tokens: pass one per token")
    _check_integers(labels, f"{where} has labels")
    return labels


def _check_list(values: Any, noun: str) -> None:
    if isinstance(values, Mapping):
        raise PackerError(f"the batch is one mapping with the keys {', '.join(values)}: pass a list of {noun}s")
    if not len(values):
        raise PackerError(f"there are 0 {noun}s: a batch needs at least 1")


def _check_labels_alike(noun: str, number: int, item: Mapping[str, Any], first_has_labels: bool) -> None:
    """Check that an item of the batch has labels if and only if the first one does."""
    if ("labels" in item) == first_has_labels:
        return
    this, first = ("no labels", "has some") if first_has_labels else ("labels", "has none")
    raise PackerError(f"{noun} {number} of the batch has {this}, {noun} 0 {first}: pass labels for all of them or none")


def _array(values: Any, subject: str) -> NDArray[Any]:
    """Convert a list or a tensor; strings and lists of different lengths become an array of objects."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return _objects(values)
    except (TypeError, RuntimeError) as error:  # a tensor on a GPU, or of a dtype that NumPy lacks
        raise PackerError(f"{subject} that NumPy cannot read ({error}): pass lists, arrays or CPU tensors") from error
    return array.astype(object) if array.dtype.kind in "US" else array


def _objects(values: Any) -> NDArray[Any]:
    """Return an array with one object per value, as the rows of a PackedDataset hold lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def _check_integers(array: NDArray[Any], subject: str) -> None:
    if array.ndim != 1:
        remedy = "pass it in one dimension, as values[0]" if array.shape[:1] == (1,) else "pass a list of integers"
        raise PackerError(f"{subject} of shape {list(array.shape)}: {remedy}")
    if array.dtype.kind not in "iu":
        raise PackerError(f"{subject} of type {array.dtype}: pass a list of integers")
