"""Recognize calls by accelerate, which do not mean what the same calls by a training loop mean."""

from __future__ import annotations

import sys

from packer.errors import PackerError


def called_by_iter_of_accelerate() -> bool:
    """Return whether `set_epoch` was called by `iter()` of a loader that accelerate prepared, not by the training loop.

    accelerate passes its own count, which starts at 0 whatever the epoch of the sampler, and does not increase after a
    pass that ends with the last batch instead of a StopIteration: `[next(batches) for _ in range(len(loader))]` would
    repeat the same epoch forever. Only the name of the caller distinguishes the two calls.

    Raises:
        PackerError: the loader dispatches batches.
    """
    caller = sys._getframe(2)  # of set_epoch
    if caller.f_globals.get("__name__") != "accelerate.data_loader":
        return False
    if type(caller.f_locals.get("self")).__name__ == "DataLoaderDispatcher":
        raise PackerError(
            "accelerate's dispatch_batches=True concatenates and slices batches by rows, and a packed batch is one "
            "row: leave dispatch_batches out, so that every process reads its own batches"
        )
    return caller.f_back is not None and caller.f_back.f_code.co_name == "__iter__"
