"""What becomes of a pack that is struck by kills, signals, a full disk, a failing one, a worker that dies.

    python benchmarks/bench_faults.py                    # four instants of every stage
    python benchmarks/bench_faults.py --each 1000        # every instant there is

A small pack of nine shards by two workers is struck once in every run, at an instant of a stage; `faults.py` says what
an instant is. Then the same command is repeated, undisturbed. "complete": the dataset was whole at once; "resumed": the
repeated command came to the bytes of an undisturbed pack, did not write committed shards again (same inode and mtime in
nanoseconds) and left nothing behind; "partly": some shards were committed and others not when it struck; "lost":
anything else.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import click
from bench_pack import installed
from faults import ERRNOS, EXCEPTIONS, SCENARIOS, SIGNALS, STAGES, LostError, Packers, Strike, Trial, random_seconds

KINDS = (*SIGNALS, *ERRNOS, *EXCEPTIONS)


@click.command()
@click.option("--each", default=4, show_default=True, help="Instants of every stage, evenly spread.")
@click.option("--outside", default=40, show_default=True, help="Kills from outside, at random moments.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this fault [default: all].")
def main(each: int, outside: int, kinds: tuple[str, ...]) -> None:
    versions = " ".join(f"{name} {installed(name)}" for name in ("pyarrow", "numpy", "numba"))
    print(f"{os.cpu_count()} cores, {platform.release()}, Python {platform.python_version()}, {versions}")
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    folder = Path(tempfile.mkdtemp(prefix="packer-faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with Packers(folder / "packers") as packers:
            for scenario in SCENARIOS.values():
                trial = Trial(packers, scenario, folder / scenario.name.replace(" ", "-"))
                strikes = [
                    Strike(kind=kind, instant=instant)
                    for kind in kinds or KINDS
                    for instant in trial.spread(each, scenario.stages)
                ]
                if not kinds or "SIGKILL" in kinds:
                    moments = random_seconds(outside // len(SCENARIOS), trial.seconds)
                    strikes += [Strike(kind="SIGKILL", seconds=seconds) for seconds in moments]
                for strike in strikes:
                    count(found, trial, strike)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(found)


def count(found: dict[tuple[str, str], Counter[str]], trial: Trial, strike: Strike) -> None:
    """Strike once, and note under the kind of fault and the stage what became of it."""
    try:
        fate = trial.strike(strike)
    except LostError as error:
        stage = trial.instants[strike.instant][0] if strike.instant is not None else "outside"
        found[strike.kind, stage] += Counter(runs=1, lost=1)
        print(f"lost: {trial.scenario.name}, {strike}: {error}")
        return
    partly = 0 < fate.shards < trial.shards and not fate.complete
    found[strike.kind, fate.stage] += Counter(runs=1, complete=fate.complete, resumed=not fate.complete, partly=partly)


def show(found: dict[tuple[str, str], Counter[str]]) -> None:
    names = ("runs", "complete", "resumed", "partly", "lost")
    print(f"\n{'fault':14}{'stage':10}" + "".join(f"{name:>10}" for name in names))
    for kind in KINDS:
        for stage in (*STAGES, "outside", "none"):
            if (kind, stage) in found:
                shown = {"outside": "any", "none": "after"}.get(stage, stage)
                print(f"{kind:14}{shown:10}" + "".join(f"{found[kind, stage][name]:10}" for name in names))
    total = sum(found.values(), Counter())
    print(f"{'all':24}" + "".join(f"{total[name]:10}" for name in names))


if __name__ == "__main__":
    main()
