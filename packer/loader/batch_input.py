"""Input of batches: rows and raw examples as arrays, checked; and arrays as tensors."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.column_names import NO_LOSS, input_ids_in
from packer.errors import PackerError, extra
from packer.loader.row_segments import Rows

Tensors = Literal["torch", "numpy"]

REQUIRED = ("seq_lengths", "doc_ids")
"""Columns that every row must have, beside its tokens; like labels, they hold integers in one dimension."""


def rows_as_arrays(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the rows of a batch with arrays as columns; rows of a PackedDataset are returned as they are."""
    found = []
    for where, row in _items(rows, "row", "pass rows of packer.load"):
        required = (input_ids_in(row), *REQUIRED)
        if required[0] not in row and "doc_starts" in row:
            raise PackerError(
                f"{where} has no tokens, because the dataset is an index: name the dataset that was packed, as in "
                "packer.load(path, source=...)"
            )
        for name in required:
            if name not in row:
                raise PackerError(
                    f"{where} has no column {name}, only {', '.join(row)}: pass rows of packer.load; in the "
                    "Hugging Face Trainer, take its arguments from packer.trainers.hf"
                )
        names = [name for name in (*required, "labels") if name in row]
        if not all(isinstance(values, np.ndarray) for values in row.values()):
            row = {name: _array(values, f"{where} has {name}") for name, values in row.items()}
            row |= {name: _objects(row[name]) for name in row if row[name].ndim > 1 and name not in names}
        for name in names:
            _check_integers(row[name], f"{where} has {name}")
        found.append(row)
    return found


def check_accelerate() -> None:
    """Raise PackerError under accelerate's context parallelism, unless a trainer such as Axolotl has replaced it."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return
    parallelism = getattr(state.AcceleratorState(), "parallelism_config", None)
    prepare: Any = getattr(sys.modules["accelerate"].Accelerator, "_prepare_cp", None)
    if parallelism is not None and parallelism.cp_enabled and prepare.__module__.startswith("accelerate"):
        raise PackerError(
            f"accelerate divides rows among cp_size={parallelism.cp_size} processes, and its attention ignores the "
            "boundaries of documents there: set cp_size=1, or choose a trainer whose context parallelism has boundaries"
        )


def examples_as_rows(examples: Sequence[Mapping[str, Any]]) -> Rows:
    """Return raw examples as rows of one document; the labels are the tokens if there are none."""
    rows: list[Mapping[str, NDArray[Any]]] = []
    for where, example in _items(examples, "example", "pass mappings with input_ids"):
        if "input_ids" not in example:
            raise PackerError(
                f"{where} has no input_ids, only {', '.join(map(str, example))}: pass mappings with input_ids"
            )
        ids = _array(example["input_ids"], f"{where} has input_ids")
        if not ids.size:
            raise PackerError(f"{where} has 0 tokens: leave empty examples out")
        _check_integers(ids, f"{where} has input_ids")
        own = example.get("labels", ids)
        if own is None:
            raise PackerError(f"{where} has labels None: pass one per token, or leave the key out of all examples")
        own = _array(own, f"{where} has labels")
        if own.ndim == 1 and len(own) != len(ids):
            raise PackerError(f"{where} has {len(own)} labels for {len(ids)} tokens: pass one per token")
        _check_integers(own, f"{where} has labels")
        labels = own.astype(np.int64)
        labels[0] = NO_LOSS
        segments = {"seq_lengths": np.array([len(ids)]), "doc_ids": np.array([len(rows)])}
        rows.append({"input_ids": ids, "labels": labels, **segments})
    return rows


def _items(items: Sequence[Mapping[str, Any]], noun: str, remedy: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, item) of the rows or examples of a batch, of which all or none have labels."""
    if isinstance(items, Mapping):
        raise PackerError(
            f"the batch is one mapping with the keys {', '.join(map(str, items))}: pass a list of {noun}s"
        )
    if not len(items):
        raise PackerError(f"there are 0 {noun}s: a batch needs at least 1")
    for number, item in enumerate(items):
        where = f"{noun} {number} of the batch"
        if not isinstance(item, Mapping):
            raise PackerError(f"{where} is of type {type(item).__name__}: {remedy}")
        if ("labels" in item) != ("labels" in items[0]):
            this, first = ("labels", "has none") if "labels" in item else ("no labels", "has some")
            raise PackerError(f"{where} has {this}, {noun} 0 {first}: pass labels for all of them or none")
        yield where, item


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


def _objects(values: Collection[object]) -> NDArray[Any]:
    """Return an array with one object per value, as the rows of a PackedDataset hold lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def _check_integers(array: NDArray[Any], subject: str) -> None:
    if array.ndim != 1:
        remedy = "pass it in one dimension, as values[0]" if array.shape[:1] == (1,) else "pass a list of integers"
        raise PackerError(f"{subject} of shape {list(array.shape)}: {remedy}")
    if array.dtype.kind not in "iu":
        raise PackerError(f"{subject} of type {array.dtype}: pass a list of integers")


def as_tensors(tensors: Tensors, batch: object) -> Any:
    """Return a batch with its arrays as tensors that share their memory; with "numpy", return it unchanged."""
    if tensors == "numpy":
        return batch
    if tensors != "torch":
        raise PackerError(f"tensors is {tensors!r}: choose torch or numpy")
    try:
        import torch
    except ImportError as error:
        raise PackerError(f'torch is not installed: {extra("torch")}, or use tensors="numpy"') from error

    def convert(value: object) -> object:
        if isinstance(value, tuple | list):
            return type(value)(map(convert, value))
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":  # torch has no strings or dates
            return value
        if isinstance(value, np.ma.MaskedArray):
            if np.ma.is_masked(value) and value.dtype.kind != "f":  # missing floats are NaN under the mask
                return value
            value = value.data
        return torch.from_numpy(value)

    return convert(batch)
