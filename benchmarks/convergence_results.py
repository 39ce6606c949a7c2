"""What bench_convergence.py found: the curves, their summary, a file and a picture of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("padded", "flattened", "packed", "packed, fewer steps", "packed, no boundaries")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The curve of one way with one seed."""

    way: str
    seed: int
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(documents seen, loss) of every step."""

    held_out: list[tuple[int, float]] = field(default_factory=list)
    """(documents seen, loss of the held-out documents)."""


def largest_difference(one: Run, other: Run) -> float:
    """Of the losses of two runs, step by step."""
    pairs = zip(one.losses, other.losses, strict=True)
    return max(abs(first[1] - second[1]) for first, second in pairs)


def draw(path: Path, runs: list[Run]) -> None:
    """The loss of the held-out documents over documents seen: the mean over seeds, and their range."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "packer"
    from matplotlib import pyplot

    figure, (whole, end) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    styles = {"padded": {"color": "black", "lw": 3, "alpha": 0.35}, "flattened": {"color": "black", "ls": "--"}}
    for way in WAYS:
        curves = np.array([run.held_out for run in runs if run.way == way])  # [seeds, evaluations, 2]
        seen, losses = curves[0, :, 0], curves[:, :, 1]
        for axes, last in ((whole, 0), (end, -len(seen) // 2)):
            (line,) = axes.plot(seen[last:], losses.mean(axis=0)[last:], label=way, **styles.get(way, {}))
            least, most = losses.min(axis=0)[last:], losses.max(axis=0)[last:]
            axes.fill_between(seen[last:], least, most, color=line.get_color(), alpha=0.12, lw=0)
    whole.set_ylabel("loss of held-out documents, nats per byte")
    whole.legend(frameon=False, fontsize="small")
    for axes, title in ((whole, "all of training"), (end, "its second half")):
        axes.set_xlabel("documents seen")
        axes.set_title(title, fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def summary(runs: list[Run], noise: dict[str, float]) -> dict[str, Any]:
    """What was found, and whether it is what packing promises."""
    last = {way: [run.held_out[-1][1] for run in runs if run.way == way] for way in WAYS}
    steps = {way: next(len(run.losses) for run in runs if run.way == way) for way in WAYS}
    against = {
        way: [own - padded for own, padded in zip(last[way], last["padded"], strict=True)] for way in WAYS
    }  # the same seed: the same first weights
    return {
        "ways": {
            way: {
                "steps": steps[way],
                "held_out_loss": statistics.mean(last[way]),
                "by_seed": last[way],
                "minus_padded": statistics.mean(against[way]),
                "minus_padded_by_seed": against[way],
            }
            for way in WAYS
        },
        "padded_and_flattened_differ_at_most": noise,
    }
