"""Work of a 7B model on packed rows: that of its matrices grows with tokens, that of attention with keys.

In a forward pass, a token costs two floating-point operations per weight of the matrices, and attention costs 4 L d per
key that a token attends to, in L layers of width d: 2 L d for its scores and 2 L d for the weighted sum of values.
Llama 2 7B has L = 32, d = 4,096 and 6,607,077,376 weights in matrices (all but the embedding), so that 25,204 keys cost
as much as the matrices. Backward passes have about twice the work of both. Tokens attend to themselves and to the
tokens before them in their segment: (l + 1) / 2 keys on average in a segment of l tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

KEYS_OF_MATRICES = 25_204
"""Keys at which attention and matrices of a 7B model cost the same: 2 * 6,607,077,376 / (4 * 32 * 4,096)."""


def attention_share(keys: float) -> float:
    """Return the share of attention in the work of a 7B model if a token attends to `keys` keys on average."""
    return keys / (KEYS_OF_MATRICES + keys)


class RowWork:
    """Accumulator of the work of a 7B model on rows that are added in parts. Padding is not counted."""

    def __init__(self) -> None:
        self._rows = self._tokens = self._keys = self._largest = 0

    def add(self, lengths: NDArray[np.integer[Any]], row_starts: NDArray[np.integer[Any]]) -> None:
        """Add rows.

        Args:
            lengths: (segments,) tokens of each segment, at least 1.
            row_starts: (rows + 1,) row r has the segments row_starts[r]:row_starts[r + 1], at least one.
        """
        if len(row_starts) < 2:
            return
        tokens = np.add.reduceat(lengths.astype(np.int64), row_starts[:-1])
        keys = keys_of_rows(lengths, row_starts)
        self._rows += len(tokens)
        self._tokens += int(tokens.sum())
        self._keys += int(keys.sum())
        self._largest = max(self._largest, int((KEYS_OF_MATRICES * tokens + keys).max()))

    @property
    def keys_per_token(self) -> float:
        """Keys that a token attends to on average."""
        return self._keys / self._tokens

    @property
    def peak(self) -> float:
        """Largest work of a row, divided by the mean."""
        return self._largest * self._rows / (KEYS_OF_MATRICES * self._tokens + self._keys)


def keys_of_rows(lengths: NDArray[np.integer[Any]], row_starts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the keys that all tokens of each row attend to, shape (rows,): segments of 3 and 1 tokens -> 6 + 1.

    Arguments are those of `RowWork.add`, with at least one row.
    """
    tokens = lengths.astype(np.int64)
    keys: NDArray[np.int64] = np.add.reduceat(tokens * (tokens + 1) // 2, row_starts[:-1])
    return keys
