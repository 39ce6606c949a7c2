"""A pack in a process of its own, struck at an instant that can be counted; and what became of its output.

An instant is the moment before (for a write: in the midst of) anything a pack does to the disk, and each time it tells
how far it is. The operations are seen by an audit hook, at `os.fsync`, at files opened for writing and at the exchange
of two folders, whatever code of the packer asks for them. `Packers` is a process in which the packer is imported and
warm; every pack is a fork of it, so that hundreds take seconds.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MAX_LEN = 64
OPTIONS = ("--max-len", str(MAX_LEN), "--shard-size", "14KB", "--workers", "2")
STAGES = ("claim", "spill", "scan", "plan", "write", "commit", "finish", "swap")
SIGNALS = ("SIGKILL", "SIGINT", "SIGTERM")
ERRNOS = ("ENOSPC", "EIO", "EACCES")
EXCEPTIONS = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    """What befalls a pack, and when."""

    kind: str
    """Of SIGNALS, ERRNOS or EXCEPTIONS."""

    instant: int | None = None
    """The number of the instant at which it does."""

    operation: str | None = None
    """How the operation begins at whose first instant it does, where threads may change the numbers."""

    seconds: float | None = None
    """How long after the start a signal comes from outside, where no instant is given."""

    repeats: bool = False
    """Whether the signal comes again at the instant after: the impatient user's second Ctrl-C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run of the command."""

    arguments: tuple[str, ...]
    """Of the command."""

    root: str
    """The folder within which operations are instants."""

    strike: Strike | None = None
    """None for an undisturbed run, whose instants are told."""

    exchanges: bool = True
    """Whether the file system can exchange two folders."""

    log: str | None = None
    """File to which operations are logged, instead of being instants; see `power_loss.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to."""

    code: int
    """Exit code, or -N where signal N ended it."""

    output: str
    """Of stdout."""

    error: str
    """Of stderr."""

    struck: tuple[str, str] | None
    """(stage, operation) of the strike, None where there was none."""

    instants: tuple[tuple[str, str], ...]
    """(stage, operation) of all, for an undisturbed run."""

    threads: int
    """Threads that were left when the command returned."""


# In the process that is struck


def stage_of(path: Path, root: Path) -> str:
    """The stage of a pack in which a path is written, renamed or removed.

    out/.packer/ID/spill/00001.arrow -> spill; out/.packer/ID/checkpoints/committed/0 -> commit
    """
    parts = path.relative_to(root).parts
    name = path.name
    if "spill" in parts:
        return "spill"
    is_entry = "committed" in parts or "-checkpoints-committed-" in name
    if is_entry or (name.startswith("data-") and ".packer" not in parts):
        return "commit"
    if "checkpoints" in parts or "-checkpoints-" in name:
        return "plan"
    if name.startswith("data-"):
        return "write"
    if name.startswith(("manifest.json", "state.json", "dataset_info.json")):
        return "finish"
    return "claim"


class Instants:
    """Counts the instants of this process, and strikes at one of them."""

    def __init__(self, job: Job, report: Callable[[Mapping[str, Any]], None]) -> None:
        self._root = Path(job.root).resolve()
        self._strike = job.strike
        self._report = report
        self._numbers = itertools.count()
        self._full = False
        self._finished = False
        self.seen: list[tuple[str, str]] = []

    def at(self, stage: str, operation: str, *, needs_room: bool = False) -> None:
        """Pass one instant, or do not."""
        number = next(self._numbers)
        strike = self._strike
        if strike is None:
            self.seen.append((stage, operation))
            return
        if strike.kind == "ENOSPC" and self._full and needs_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if strike.operation is not None and operation.startswith(strike.operation):
            strike = replace(strike, instant=number)
        if strike.instant is None or number not in range(strike.instant, strike.instant + 1 + strike.repeats):
            return
        self._report({"struck": (stage, operation)})
        if strike.kind in SIGNALS:
            os.kill(os.getpid(), getattr(signal, strike.kind))
            if strike.kind == "SIGKILL":
                time.sleep(60)
        elif strike.kind in EXCEPTIONS:
            raise EXCEPTIONS[strike.kind](f"at {operation}")
        elif strike.kind != "ENOSPC" or needs_room:
            self._full = True
            number = getattr(errno, strike.kind)
            raise OSError(number, os.strerror(number))

    def on_disk(self, operation: str, path: Any, folder: int = -1) -> None:
        """Pass the instant before an operation on a path, where it is one of ours."""
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        elif folder is not None and folder >= 0:
            path = Path(f"/proc/self/fd/{folder}").readlink() / os.fsdecode(path)
        path = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 (links must stay)
        if self._root not in path.parents and path != self._root:
            return
        stage = stage_of(path, self._root) if path != self._root else "claim"
        if self._finished:  # from the manifest on, and around whole datasets, nothing is made
            stage = "swap"
        self._finished |= operation == "rename" and path.name.startswith("manifest.json.")
        if path.parent == self._root and operation in ("rename", "exchange", "exchanged"):
            stage = "swap"
        self.at(stage, f"{operation} {path.name}", needs_room=operation in ("open", "write", "mkdir", "fsync"))

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Pass what the interpreter is about to do: an audit hook."""
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not isinstance(path, int):
                self.on_disk("open", path)
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            folder = arguments[2 if event in ("os.rename", "os.mkdir") else 1]
            self.on_disk(event.removeprefix("os."), arguments[0], folder)


class FaultyFile:
    """A file whose writes are instants: a strike finds half of the bytes written."""

    def __init__(self, file: Any, path: Path, instants: Instants) -> None:
        self._file = file
        self._path = path
        self._instants = instants

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        """Write one half, pass the instant, write the other."""
        written = int(self._file.write(data[: len(data) // 2]))
        self._file.flush()
        self._instants.on_disk("write", self._path)
        return written + int(self._file.write(data[len(data) // 2 :]))


def install(instants: Instants, *, exchanges: bool) -> None:
    """Make everything that this process does to the disk an instant, from now on."""
    from packer.cli import progress_bars
    from packer.output import replace_folder

    usual_open, usual_fsync, usual_exchange = Path.open, os.fsync, replace_folder.exchange
    usual_bars = progress_bars.progress_bars

    def opening(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = usual_open(path, mode, *arguments, **options)
        return FaultyFile(file, path, instants) if "w" in mode else file

    def syncing(descriptor: int) -> None:
        instants.on_disk("fsync", descriptor)
        usual_fsync(descriptor)

    def exchanging(one: Path, other: Path) -> bool:
        instants.on_disk("exchange", one)
        if not exchanges:
            return False
        found = usual_exchange(one, other)
        instants.on_disk("exchanged", one)
        return found

    @contextlib.contextmanager
    def telling(**how: Any) -> Iterator[Any]:
        stages = {"decode": "spill", "lengths": "scan", "solve": "plan"}
        with usual_bars(**how) as draw:

            def tell(stage: str, done: int, total: int) -> None:
                kind = stage.split()[0]
                instants.at(stages.get(kind, kind), f"tell {kind}")
                draw(stage, done, total)

            yield tell

    Path.open = opening  # type: ignore[method-assign,assignment]
    os.fsync = syncing  # type: ignore[assignment]
    replace_folder.exchange = exchanging
    sys.modules["packer.cli.writing_commands"].progress_bars = telling  # type: ignore[attr-defined]
    sys.addaudithook(instants.on_event)


def run_struck(job: Job, files: Mapping[str, Path]) -> int:
    """Run the command in this process, a fork; return its exit code."""
    from packer.cli import cli

    for number, name in ((1, "output"), (2, "error")):
        with files[name].open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    told = os.open(files["told"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def report(content: Mapping[str, Any]) -> None:
        os.write(told, (json.dumps(content) + "\n").encode())

    instants = Instants(job, report)
    if job.log is None:
        install(instants, exchanges=job.exchanges)
    else:
        from tests.helpers.power_loss import Recorder

        Recorder(Path(job.root), Path(job.log)).install(exchanges=job.exchanges)
    code = 0
    try:
        cli(list(job.arguments), prog_name="packer")
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    report({"instants": instants.seen, "threads": threads_left(seconds=1)})
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def threads_left(seconds: float) -> int:
    """Return the number of threads that still run after this time, daemons and the main thread left out.

    A thread that an interrupt hid from its pool has nothing to do, and ends. One that an interrupt met while it was
    being started is listed but cannot be joined; if it never began, it is not alive.
    """
    end = time.monotonic() + seconds
    while left := [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]:
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return sum(thread.is_alive() for thread in left)


# In the process that is forked


def serve() -> None:
    """Read a line of jobs, run them side by side, write a line of outcomes; until there are no more."""
    from tests.helpers.small import shrink

    folder = Path(sys.argv[1])
    shrink(
        pytest.MonkeyPatch(), partition_tokens=1
    )  # each shard is a partition, so that plans have several checkpoints
    warm_up(folder)
    for line in sys.stdin:
        jobs = [Job(**{**job, "strike": job["strike"] and Strike(**job["strike"])}) for job in json.loads(line)]
        begun = []
        for number, job in enumerate(jobs):
            files = {name: folder / f"{name}-{number}" for name in ("output", "error", "told")}
            files["told"].write_bytes(b"")
            child = os.fork()
            if not child:
                code = 70
                try:
                    code = run_struck(job, files)
                except BaseException:
                    files["error"].write_text(traceback.format_exc())  # the driver itself is broken
                finally:
                    os._exit(code)
            begun.append((job, child, files))
        for job, child, _ in begun:
            if job.strike is not None and job.strike.seconds is not None:
                time.sleep(job.strike.seconds)
                os.kill(child, getattr(signal, job.strike.kind))
        print(json.dumps([ended(child, files) for _, child, files in begun]), flush=True)


def warm_up(folder: Path) -> None:
    """Run the command, so that all is imported and every kernel is loaded; no thread is left when that is done."""
    from packer.algorithms import jit
    from packer.cli import cli

    jit.compile_from_now_on()  # otherwise every fork would load Numba for itself
    write_arrow(folder / "warm.arrow", made_documents(300))
    write_mixed(folder / "warm", made_documents(300))
    for name in ("warm.arrow", "warm"):
        arguments = ["pack", str(folder / name), "-o", str(folder / f"{name}-packed"), *OPTIONS]
        with contextlib.redirect_stdout(io.StringIO()):
            cli(arguments, prog_name="packer", standalone_mode=False)
    assert threading.active_count() == 1


def ended(child: int, files: Mapping[str, Path]) -> dict[str, Any]:
    """Wait for a run; an Outcome as a dict."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told: dict[str, Any] = {"struck": None, "instants": [], "threads": 0}
    for line in files["told"].read_text().splitlines():
        told.update(json.loads(line))
    return {"code": code, "output": files["output"].read_text(), "error": files["error"].read_text(), **told}


# In the process that asks


class Packers:
    """A warm process that forks a packer for every run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, str(folder)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def __enter__(self) -> Packers:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run(self, *jobs: Job) -> list[Outcome]:
        """Run jobs side by side."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([asdict(job) for job in jobs]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks packers is gone")
        return [
            Outcome(
                **{
                    **found,
                    "struck": found["struck"] and tuple(found["struck"]),
                    "instants": tuple(map(tuple, found["instants"])),
                }
            )
            for found in json.loads(line)
        ]


# What is packed


def made_documents(count: int, seed: int = 0) -> list[list[int]]:
    values = np.random.default_rng(seed)
    return [values.integers(1, 1000, length).tolist() for length in values.integers(0, 60, count)]


def write_arrow(path: Path, documents: Sequence[Sequence[int]]) -> None:
    table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=100)


def write_mixed(folder: Path, documents: Sequence[Sequence[int]]) -> None:
    """A folder of three files of which two must be decoded."""
    folder.mkdir()
    third = len(documents) // 3
    write_arrow(folder / "a.arrow", documents[:third])
    lines = (json.dumps({"input_ids": tokens}) + "\n" for tokens in documents[third : 2 * third])
    (folder / "b.jsonl").write_text("".join(lines))
    table = pa.table({"input_ids": pa.array(documents[2 * third :], pa.list_(pa.int64()))})
    pq.write_table(table, folder / "c.parquet", row_group_size=50)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A command, and what is there before it runs."""

    name: str
    """For tables."""

    decoded: bool = False
    """Whether the source must be decoded, in part."""

    overwrites: bool = False
    """Whether a complete dataset, of another seed, is there and replaced."""

    sync: bool = True
    """Whether files are fsynced."""

    exchanges: bool = True
    """Whether the file system can exchange two folders."""

    stages: tuple[str, ...] = field(default=STAGES)
    """Those that it has."""


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="mapped", stages=("claim", "scan", "plan", "write", "commit", "finish", "swap")),
        Scenario(name="decoded", decoded=True),
        Scenario(name="decoded, --no-sync", decoded=True, sync=False),
        Scenario(name="--overwrite", decoded=True, overwrites=True),
        Scenario(name="--overwrite, two renames", overwrites=True, exchanges=False, stages=("plan", "commit", "swap")),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """What became of a pack that was struck."""

    stage: str
    """In which it was; "outside" where the strike had no instant, "none" where the pack had ended before."""

    operation: str
    """Before which it was, or in the midst of which."""

    complete: bool
    """Whether its output was complete at once."""

    shards: int
    """How many were committed before the strike."""


class LostError(AssertionError):
    """A promise was broken."""


class Trial:
    """A scenario made ready in a folder: its source, what an undisturbed run makes of it, and its instants."""

    def __init__(self, packers: Packers, scenario: Scenario, folder: Path) -> None:
        self._packers = packers
        self._folder = folder
        self._cases = itertools.count()
        self.scenario = scenario
        folder.mkdir(parents=True)
        documents = made_documents(300)
        self.source = folder / ("source" if scenario.decoded else "source.arrow")
        (write_mixed if scenario.decoded else write_arrow)(self.source, documents)
        self.old: dict[str, str] = {}
        if scenario.overwrites:
            self.old = self._undisturbed(folder / "old", "--seed", "9")[0]
        self.expected, _ = self._undisturbed(folder / "fresh", *self._more)
        case = self.case()
        _, self.instants = self._undisturbed(case, *self._more)
        begun = time.perf_counter()
        self._undisturbed(self.case(), *self._more)
        self.seconds = time.perf_counter() - begun
        require(contents(case / "out") == self.expected, "two undisturbed packs differ")
        self.shards = sum(name.startswith("data-") for name in self.expected)

    @property
    def _more(self) -> tuple[str, ...]:
        return ("--overwrite",) * self.scenario.overwrites + ("--no-sync",) * (not self.scenario.sync)

    def job(self, case: Path, *more: str, strike: Strike | None = None) -> Job:
        """The command, with its output in a case's folder."""
        arguments = ("pack", str(self.source), "-o", str(case / "out"), *OPTIONS, *more)
        return Job(arguments=arguments, root=str(case), strike=strike, exchanges=self.scenario.exchanges)

    def _undisturbed(self, case: Path, *more: str) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
        case.mkdir(exist_ok=True)
        (outcome,) = self._packers.run(self.job(case, *more))
        require(outcome.code == 0 and not outcome.error, f"an undisturbed pack failed: {outcome.error}")
        return contents(case / "out"), outcome.instants

    def case(self) -> Path:
        """A folder with what is there before the command."""
        case = self._folder / f"case-{next(self._cases)}"
        case.mkdir()
        if self.scenario.overwrites:
            shutil.copytree(self._folder / "old" / "out", case / "out")
        return case

    def spread(self, each: int, stages: Sequence[str] = STAGES) -> list[int]:
        """Numbers of instants: at most `each` of every stage, evenly spread."""
        found = []
        for stage in stages:
            numbers = [number for number, (struck, _) in enumerate(self.instants) if struck == stage]
            step = max(1.0, len(numbers) / each)
            found += [numbers[int(place * step)] for place in range(min(each, len(numbers)))]
        return sorted(found)

    def run(self, case: Path, strike: Strike) -> Outcome:
        """Run the command in a case's folder and strike it."""
        (outcome,) = self._packers.run(self.job(case, *self._more, strike=strike))
        return outcome

    def run_together(self, case: Path, count: int) -> list[Outcome]:
        """Run the same command several times at once."""
        return self._packers.run(*[self.job(case, *self._more)] * count)

    def strike(self, *strikes: Strike) -> Fate:
        """Strike the command, again as it resumes, then let it end; raises LostError where a promise is broken."""
        case = self.case()
        fates = [self._struck(case, strike) for strike in strikes]
        swapped = self.scenario.overwrites and contents(case / "out") == self.expected
        there = {} if swapped else self._committed(case)
        (outcome,) = self._packers.run(self.job(case, *self._more))
        require(outcome.code == 0, f"the same command failed: {outcome.error}")
        require(not outcome.error, f"the same command complained: {outcome.error}")
        require(contents(case / "out") == self.expected, "the same command came to other bytes")
        require([path.name for path in case.iterdir()] == ["out"], "something was left beside the output")
        rewritten = there.items() - shards_in(case / "out").items()
        require(not rewritten, f"committed shards were written again: {sorted(rewritten)}")
        shutil.rmtree(case)
        return fates[0]

    def _struck(self, case: Path, strike: Strike) -> Fate:
        before = self._committed(case)
        outcome = self.run(case, strike)
        stage, operation = outcome.struck or (("none", "") if outcome.code == 0 else ("outside", ""))
        check_end(outcome, strike)
        there = self._committed(case)
        require(before.items() <= there.items() or is_complete(case / "out"), "committed shards were written again")
        found = contents(case / "out")
        complete = found == self.expected
        if is_complete(case / "out"):
            require(complete or found == self.old, "a dataset looks whole and is not")
        if self.scenario.overwrites and not complete:
            moved = strike.kind == "SIGKILL" and not self.scenario.exchanges  # between the two renames
            kept = (case / "out", case / ".out.packer-old")[: 1 + moved]
            require(self.old in map(contents, kept), "the complete dataset was damaged")
        ended_at_once = strike.kind == "SIGKILL" or strike.repeats  # the second signal is one
        if not ended_at_once and not is_removal(operation):
            left = [path for path in case.rglob(".packer/**/*") if is_temporary(path)]
            require(not left or complete, f"temporary files were left: {left}")
        return Fate(stage=stage, operation=operation, complete=complete, shards=len(there))

    def _committed(self, case: Path) -> dict[str, tuple[int, int]]:
        """Shards that must not be written again: those of an unfinished pack, or of a complete one that stays."""
        building = case / (".out.packer-new" if self.scenario.overwrites else "out")
        if self.scenario.overwrites and is_complete(building):
            return {}  # it is made again
        return shards_in(building)


def check_end(outcome: Outcome, strike: Strike) -> None:
    """Require that a command ended as its user may expect."""
    require(outcome.threads == 0, f"{outcome.threads} threads were left")
    if strike.kind == "SIGKILL":
        require(outcome.code in (-signal.SIGKILL, 0), f"exit code {outcome.code} after a kill: {outcome.error}")
        return
    codes = {"SIGINT": 130, "SIGTERM": 143}
    if strike.kind in SIGNALS and strike.repeats and outcome.code < 0:
        return  # whoever asks twice gets what a kill gives
    if outcome.code != 0:
        expected = codes.get(strike.kind, 1)
        require(outcome.code == expected, f"exit code {outcome.code}, not {expected}: {outcome.error}")
    if strike.kind == "RuntimeError":  # an error of the packer's own: its traceback is wanted
        return
    lines = outcome.error.splitlines()
    require(len(lines) == (outcome.code != 0), f"not one line: {outcome.error}")
    require(all(line.startswith("packer: ") for line in lines), f"not a line of ours: {outcome.error}")


def require(holds: bool, complaint: str) -> None:
    if not holds:
        raise LostError(complaint)


def is_complete(out: Path) -> bool:
    return (out / "manifest.json").is_file()


def is_removal(operation: str) -> bool:
    return operation.startswith(("remove", "rmdir"))


def is_temporary(path: Path) -> bool:
    """Whether a file under .packer/ is one that was to be renamed: data-00001-of-00009.arrow.8f0c..., say."""
    return re.fullmatch(r"[^.].*\.[0-9a-f]{32}", path.name) is not None


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by name; what an unfinished pack keeps in its own folder left out."""
    if not folder.is_dir():
        return {}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def shards_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and mtime, in nanoseconds, of every committed shard: one that is written again has others."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("data-*.arrow")}


def random_seconds(count: int, most: float, seed: int = 0) -> list[float]:
    """Moments from the start to `most`, for kills from outside."""
    draw = random.Random(seed)
    return [draw.uniform(0, most) for _ in range(count)]


if __name__ == "__main__":
    serve()
