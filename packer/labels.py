"""The label without loss, in a module of its own, so that readers can import it without Numba."""

NO_LOSS = -100
"""The label of a token without loss, as every trainer reads it (the `ignore_index` of cross-entropy)."""
