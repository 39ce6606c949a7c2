"""Columns that say which tokens are trained: those that a file has, and masks of those with a number per document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import is_numeric
from packer.inputs.documents import DocumentError
from packer.inputs.meanings import MASKS, ONLY_LISTS, SAYING, WEIGHTS

Fields: TypeAlias = pa.Schema | Mapping[str, object]
"""Columns of a file: its schema, or one of its records."""

WEIGHT_LIMIT = "weights other than 0 and 1 are not supported; round them, or carry the column unused with"
"""What a message says of a weight, before the option that keeps it."""


def loss_columns(fields: Fields, names: Iterable[str] = SAYING, *, depth: int = 1) -> dict[str, bool]:
    """Return which of these columns a file has, and whether each has a list for each document.

    A weight that is null says nothing of training, nor does another value where only a list does: one with lists in
    it if `depth`, the number of lists that tokens are in, is 2.
    """
    types = dict(zip(fields.names, fields.types, strict=True)) if isinstance(fields, pa.Schema) else fields
    levels = {name: _levels(types[name]) for name in names if name in types}
    return {
        name: name in MASKS or (name in WEIGHTS and level > 0)
        for name, level in levels.items()
        if (level == depth or name not in ONLY_LISTS) and (level >= 0 or name not in WEIGHTS)
    }


def names_of(fields: Fields) -> list[str]:
    """Return the names of the columns."""
    return [*(fields.names if isinstance(fields, pa.Schema) else fields)]


def _levels(found: object) -> int:
    """Return how many lists the values of a type, or the numbers of a value, are in; -1 for null."""
    if isinstance(found, pa.BaseExtensionType):
        return _levels(found.storage_type)
    if isinstance(found, (list, pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        inside = found.value_type if isinstance(found, pa.DataType) else next(iter(found), None)
        return 1 + max(_levels(inside), 0)
    return -1 if found is None or (isinstance(found, pa.DataType) and pa.types.is_null(found)) else 0


def mask_of_numbers(name: str, numbers: pa.Array, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each token is trained, given the length of a prompt, or a weight, for each document.

    Prompts of 2 tokens in documents of 3 and 4: F F T, F F T T. Weights 0 and 1: F F F, T T T T; without one, 1.
    Raises a DocumentError for the first number that is no such length or weight.
    """
    is_weight, values = name in WEIGHTS, np.full(len(numbers), np.nan)
    if is_numeric(numbers.type) or (is_weight and pa.types.is_boolean(numbers.type)):
        values = np.array(numbers.to_numpy(zero_copy_only=False), np.float64)
    values[np.asarray(numbers.is_null())] = 1 if is_weight else np.nan
    fits = (values >= 0) & (values <= (1 if is_weight else lengths)) & (values == np.floor(values))
    for row in np.flatnonzero(~fits)[:1].tolist():
        limit = f"for {lengths[row]} tokens: it is the number of tokens at the beginning that are not trained"
        limit = f"as weight: {WEIGHT_LIMIT} --keep {name}" if is_weight else limit
        raise DocumentError(row, f"'{name}' holds {str(numbers[row])[:40]} {limit}", reason="invalid_labels")
    untrained = (1 - values) * lengths if is_weight else values
    mask: NDArray[np.bool_] = np.arange(lengths.sum()) >= np.repeat(np.cumsum(lengths) - lengths + untrained, lengths)
    return mask
