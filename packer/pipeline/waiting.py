"""Time that ranks of a training job wait for each other, because rows of equal length do not have equal work."""

from __future__ import annotations

from dataclasses import asdict
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import OptionError
from packer.loader.row_order import row_order, steps_of_like_work
from packer.options.option import as_amount
from packer.report.measures import KEYS_OF_MATRICES, RowProfile, TrainingJob, Waiting


def training_job(ranks: int | None, accumulation: int | None, model: str | None) -> TrainingJob | None:
    """Return a job of so many ranks, or None if there is no number of ranks; the defaults are those of the class."""
    if ranks is None:
        for name, value in (("accumulation", accumulation), ("model", model)):
            if value is not None:
                raise OptionError(f"--{name} {value} is for --data-parallel: give the number of ranks, or leave it out")
        return None
    accumulation = 1 if accumulation is None else accumulation
    for name, number in (("data-parallel", ranks), ("accumulation", accumulation)):
        if not hasattr(number, "__index__") or index(number) < 1:
            raise OptionError(f"--{name} {number}: choose a whole number of at least 1")
    return TrainingJob(ranks=index(ranks), accumulation=index(accumulation), model=model or "7B")


def waiting_of(rows: RowProfile, job: TrainingJob) -> Waiting:
    """Return the share of time that ranks wait, for rows in random order and balanced over 1 and 8 steps.

    After each row, all ranks wait for the one whose row has the most work. Steps are those of `packer.BatchSampler`
    with batches of one row. Rows at the end of the epoch that fill no step are left out.

    Raises:
        PackerError: there are not enough rows for a step, or the model is none.
    """
    keys = keys_of_matrices(job.model)
    per_step = job.ranks * job.accumulation
    work = keys * rows.tokens.astype(np.float64) + (rows.squares + rows.tokens) / 2
    order = row_order(len(work), seed=0, epoch=0)
    order = order[: len(order) // per_step * per_step]
    if not len(order):
        raise OptionError(
            f"--data-parallel {job.ranks}: a step has {per_step:,} rows, and there are {len(work):,}: choose fewer"
        )

    def lost(order: NDArray[np.int64], *, balanced: bool) -> float:
        steps = work[order].reshape(-1, per_step)
        turns = (np.sort(steps, axis=1) if balanced else steps).reshape(-1, job.ranks)
        return 1 - float(turns.mean(axis=1).sum() / turns.max(axis=1).sum())

    alike = steps_of_like_work(order, rows.squares[order], size=per_step, window=8)
    return Waiting(
        **asdict(job),
        keys_of_matrices=keys,
        shares={0: lost(order, balanced=False), 1: lost(order, balanced=True), 8: lost(alike, balanced=True)},
    )


def keys_of_matrices(model: str) -> int:
    """Return the keys at which attention costs a model as much as its matrices: N / 2Ld (see `report.row_figures`).

    For a number of weights, that of Llama 2 7B grows with the width of the model, which is as the cube root of its
    weights. From a config, N counts the weights that a token meets in attention, feed-forward layers and output.
    """
    weights = as_amount(model)
    if isinstance(weights, int) and weights > 0:
        return int(KEYS_OF_MATRICES * (weights / 7e9) ** (1 / 3))
    from packer.attention.load_model import language_config

    config: Any = language_config(model)
    try:
        hidden, heads, layers = config.hidden_size, config.num_attention_heads, config.num_hidden_layers
        width = heads * (getattr(config, "head_dim", None) or hidden // heads)
        of_keys = 2 * width * (getattr(config, "num_key_value_heads", None) or heads) // heads
        experts = getattr(config, "num_experts_per_tok", None) or 1
        of_expert = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        layer = hidden * (2 * width + of_keys) + 3 * hidden * experts * of_expert
        return int((layers * layer + hidden * config.vocab_size) / (2 * layers * width))
    except (AttributeError, TypeError):
        raise OptionError(
            f"--model {model}: its config lacks hidden_size, intermediate_size or other sizes of a decoder: give its "
            "number of weights, as in 7B"
        ) from None
