"""Effect of packing on hyperparameters: batch size, optimizer steps and Adam's betas."""

from __future__ import annotations

from dataclasses import dataclass

from packer.errors import PackerError
from packer.loader.dataset import PackedDataset


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSchedule:
    """Hyperparameters of a packed run that correspond to those of a run with one document per row."""

    packing_factor: float
    """Documents per row."""

    global_batch: int
    """Rows per optimizer step."""

    documents_per_step: float
    """Documents per optimizer step, on average."""

    steps: int
    """Optimizer steps of the run, counting the last, smaller one of each epoch."""

    betas: tuple[float, float]
    """Decay rates of the running averages of gradients in Adam and LAMB."""


def packed_schedule(
    dataset: PackedDataset,
    *,
    batch_size: int,
    global_batch: int | None = None,
    epochs: int = 1,
    betas: tuple[float, float] = (0.9, 0.999),
) -> PackedSchedule:
    """Convert a batch size in documents, which a run was tuned for, into rows of a packed dataset.

    A row holds `packing_factor` documents. With as many rows per step as there were documents, steps become that much
    larger and fewer. There are two remedies:

    - Keep the documents per step (the default): a global batch of batch_size / packing_factor rows, by less gradient
      accumulation or fewer ranks. Steps, learning rate, warm-up and betas stay the same (betas are adjusted for
      rounding to whole rows). Kundu et al. (arXiv 2407.09105) attribute the higher loss of offline packing to its
      fewer optimizer steps; with as many steps the gap shrinks.
    - Keep the rows per step (`global_batch=batch_size`), where fewer rows would leave the hardware idle. A step then
      sees packing_factor times as many documents, and betas are raised to that power, so that gradients decay over
      as many documents as before. Krell et al. (arXiv 2107.02027) do so with LAMB: 0.9 becomes 0.81 for a factor of
      2. Tune the learning rate again, as for any larger batch, and count its warm-up and decay in the new steps. Do
      not rely on scaling it with the batch size: Wang et al. (arXiv 2410.08081) find that under packing the two no
      longer scale together.

    A split document counts once.

    Args:
        dataset: dataset from `load`.
        batch_size: documents per optimizer step, over all ranks, of the unpacked run; at least 1.
        global_batch: rows per optimizer step; by default the number that holds about batch_size documents.
        epochs: passes over the dataset.
        betas: betas of the unpacked run, each at least 0 and below 1.

    Raises:
        PackerError: a number is out of its range.
    """
    for name, value in (("batch_size", batch_size), ("global_batch", global_batch), ("epochs", epochs)):
        if value is not None and value < 1:
            raise PackerError(f"{name} is {value}: it must be at least 1")
    if not all(0 <= beta < 1 for beta in betas):
        raise PackerError(f"betas are {betas}: they must be at least 0 and below 1")
    packing_factor = dataset.documents_per_row
    rows = max(1, round(batch_size / packing_factor)) if global_batch is None else global_batch
    growth = rows * packing_factor / batch_size
    return PackedSchedule(
        packing_factor=packing_factor,
        global_batch=rows,
        documents_per_step=rows * packing_factor,
        steps=-(-len(dataset) // rows) * epochs,
        betas=(betas[0] ** growth, betas[1] ** growth),
    )
