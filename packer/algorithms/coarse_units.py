"""Demands of a large capacity in coarser units, so that arrays by demand stay small."""

import numpy as np
from numpy.typing import NDArray

FINEST = 1 << 17
"""Largest capacity of the primary resource for drawing; demands of a larger one are counted in coarser units."""


def coarsen(demands: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int]:
    """Return demands and a capacity of at most FINEST, in coarser units, such that whatever fits in these units fits.

    Demands are rounded up and the capacity down: 5, 6 and 10 of 10 in units of 3 are 2, 2 and 3 of 3. A demand is never
    above the capacity: one that takes all of it is alone in its row.
    """
    unit = -(-capacity // FINEST)
    return np.minimum(-(-demands // unit), capacity // unit).astype(np.int32), capacity // unit
