"""What packing does to batch size, steps and momentum."""

from __future__ import annotations

from dataclasses import dataclass

from packer.errors import PackerError
from packer.loader.dataset import PackedDataset


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSchedule:
    """The hyperparameters of a packed run that stand for those of a run with a document per row."""

    packing_factor: float
    """Documents per row."""

    global_batch: int
    """Rows of an optimizer step."""

    documents_per_step: float
    """Documents of an optimizer step, on average."""

    steps: int
    """Optimizer steps, the last of an epoch with the rows that are left."""

    betas: tuple[float, float]
    """Decay of the running means of gradients, for Adam and LAMB."""


def packed_schedule(
    dataset: PackedDataset,
    *,
    batch_size: int,
    global_batch: int | None = None,
    epochs: int = 1,
    betas: tuple[float, float] = (0.9, 0.999),
) -> PackedSchedule:
    """Translate the batch size of documents that a run was tuned for into rows of this dataset.

    A row holds `packing_factor` documents, so as many rows as there were documents make every step that much larger,
    and leave that many fewer of them. There are two ways out:

    - Keep the documents of a step (the default): a global batch of batch_size / packing_factor rows, by less gradient
      accumulation or fewer ranks. Steps, learning rate, warm-up and betas stay as they were (betas follow what
      rounding to whole rows changes). Kundu et al. (arXiv 2407.09105) trace the higher loss of offline packing to
      fewer optimizer steps; with as many steps the gap shrinks.
    - Keep the rows (`global_batch=batch_size`), where less would leave the machine idle: a step sees packing_factor
      times the documents. Then betas are raised to that power, so that a gradient fades over as many documents as
      before; Krell et al. (arXiv 2107.02027) do so with LAMB: 0.9 becomes 0.81 for a factor of 2. The learning rate
      has to be tuned again, as for any larger batch, and its warm-up and decay counted in the new steps. Do not count
      on scaling it with the batch: Wang et al. (arXiv 2410.08081) find that under packing the two no longer scale
      together.

    Where documents were split, a document counts in one of its rows only.

    Args:
        dataset: from `load`.
        batch_size: documents per optimizer step, over all ranks, of the run that packing replaces.
        global_batch: rows per optimizer step; by default those that hold about batch_size documents, at least 1.
        epochs: passes over the dataset.
        betas: of the run that packing replaces.

    Raises:
        PackerError: a number is below 1, or a beta not in 0..1.
    """
    for name, value in (("batch_size", batch_size), ("global_batch", global_batch), ("epochs", epochs)):
        if value is not None and value < 1:
            raise PackerError(f"{name} is {value}: it is at least 1")
    if not all(0 <= beta < 1 for beta in betas):
        raise PackerError(f"betas are {betas}: they are at least 0 and below 1")
    totals = dataset.manifest.totals
    documents = totals["documents"] - sum(totals["documents_dropped"].values())
    packing_factor = documents / len(dataset)
    rows = max(1, round(batch_size / packing_factor)) if global_batch is None else global_batch
    growth = rows * packing_factor / batch_size
    return PackedSchedule(
        packing_factor=packing_factor,
        global_batch=rows,
        documents_per_step=rows * packing_factor,
        steps=-(-len(dataset) // rows) * epochs,
        betas=(betas[0] ** growth, betas[1] ** growth),
    )
