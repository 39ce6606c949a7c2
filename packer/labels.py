"""Labels: the value without loss. It stands alone, as readers import it without Numba."""

NO_LOSS = -100
"""The label of a token without loss, as every trainer reads it (the `ignore_index` of cross-entropy)."""
