"""What bench_convergence.py found: the curves, their summary, a file and a picture of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WAYS = ("padded", "flattened", "packed", "packed, fewer steps", "packed, no boundaries")

WAYS_REPACKED = ("packed", "packed, new rows", "packed, other order")


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


def print_repacked(runs: list[Run]) -> dict[str, Any]:
    """Print the losses of one packing and of several, and how they differ with the same seed; return both by seed.

    "Last epoch" is the mean loss of its steps, before each step; "epoch 1", ... are held-out losses after an epoch.
    """
    epochs = len(runs[0].held_out)
    losses: dict[str, dict[str, list[float]]] = {"last epoch": {}, **{f"epoch {at + 1}": {} for at in range(epochs)}}
    for way in WAYS_REPACKED:
        own = [run for run in runs if run.way == way]
        losses["last epoch"][way] = [
            statistics.mean(loss for _, loss in run.losses[-(len(run.losses) // epochs) :]) for run in own
        ]
        for at in range(epochs):
            losses[f"epoch {at + 1}"][way] = [run.held_out[at][1] for run in own]
    freedom = len(losses["last epoch"]["packed"]) - 1
    spread = np.quantile(np.random.default_rng(0).standard_t(freedom, 1_000_000), 0.975)  # 2.36 with 8 seeds
    print(f"\n{'':22} {'loss':>8} {'minus packed':>13} {'standard error':>15}   {'95% interval':>18}")
    for measure, of_ways in losses.items():
        print("training, last epoch" if measure == "last epoch" else f"held out, {measure}")
        for way, values in of_ways.items():
            percent = 100 * (np.array(values) / np.array(of_ways["packed"]) - 1)
            mean, error = percent.mean(), percent.std(ddof=1) / np.sqrt(len(values))
            between = f"{mean - spread * error:.2f}% to {mean + spread * error:.2f}%"
            cells = "" if way == "packed" else f" {mean:12.2f}% {error:14.2f}%   {between:>18}"
            print(f"  {way:20} {np.mean(values):8.4f}{cells}")
    return {"losses_by_seed": losses}
