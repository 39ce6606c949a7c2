"""Commands in processes of their own, struck at an instant that can be counted; and what became of their output.

An instant is the moment before (for a write: in the midst of) anything a command does to the disk, and each time it
reports progress. The operations are seen by an audit hook, at `os.fsync`, at files opened for writing and at the
exchange of two folders, whatever code asks for them. `Packers` is a process in which packer is imported and warm; every
command is a fork of it, so that hundreds take seconds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.power_loss import Disk, digest, write_tree

STAGES = ("claim", "spill", "scan", "plan", "write", "commit", "finish", "swap")
SIGNALS = ("SIGKILL", "SIGINT", "SIGTERM", "SIGSTOP")
ERRNOS = ("ENOSPC", "EIO", "EACCES")
EXCEPTIONS = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    """What befalls a command, and when."""

    kind: str
    """One of SIGNALS, ERRNOS or EXCEPTIONS, or "other goes on"."""

    instant: int | None = None
    """Number of the instant."""

    operation: str | None = None
    """Beginning of the operation at whose first instant it comes, where threads may change the numbers."""

    seconds: float | None = None
    """How long after the start a signal comes from outside, where no instant is given."""

    repeats: bool = False
    """Whether the signal comes again at the next instant: the impatient user's second Ctrl-C."""

    stopped: int = 0
    """Process that goes on, and ends, before this one does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run of a command, or the rest of a run that was stopped."""

    arguments: tuple[str, ...] = ()
    """Arguments of the command."""

    root: str = ""
    """Folder within which operations are instants."""

    strike: Strike | None = None
    """None for an undisturbed run, whose instants are reported."""

    exchanges: bool = True
    """Whether the file system can exchange two folders."""

    log: str | None = None
    """File to which operations are logged, instead of being instants; see `power_loss.py`."""

    stopped: int | None = None
    """Process that was stopped by a strike, to go on now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a run."""

    code: int | None
    """Exit code, or -N if signal N ended it; None if it was stopped."""

    process: int
    output: str
    error: str

    struck: tuple[str, str] | None
    """(stage, operation) of the strike; None if there was none."""

    instants: tuple[tuple[str, str], ...]
    """(stage, operation) of all instants of an undisturbed run."""

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
        elif strike.kind == "other goes on":
            go_on(strike.stopped)
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
    from packer.output import replace_folder
    from packer.progress import progress_bars

    usual_open, usual_fsync, usual_exchange = Path.open, os.fsync, replace_folder.exchange
    usual_bars = progress_bars

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
                if done or kind != "decode":  # that bar appears before a copy has been begun
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

    folder, runs = Path(sys.argv[1]), {}
    shrink(pytest.MonkeyPatch(), partition_tokens=1, heartbeat=0.05)  # each shard is a partition
    warm_up(folder)
    for line in sys.stdin:
        jobs = [Job(**{**job, "strike": job["strike"] and Strike(**job["strike"])}) for job in json.loads(line)]
        begun = []
        for job in jobs:
            if job.stopped is not None:
                os.kill(job.stopped, signal.SIGCONT)
                begun.append((job, job.stopped))
                continue
            files = {name: folder / f"{name}-{len(runs)}" for name in ("output", "error", "told")}
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
            runs[child] = files
            begun.append((job, child))
        for job, child in begun:
            if job.strike is not None and job.strike.seconds is not None:
                time.sleep(job.strike.seconds)
                os.kill(child, getattr(signal, job.strike.kind))
        print(json.dumps([ended(child, runs[child]) for _, child in begun]), flush=True)


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
    """Wait until a run has ended or stopped; return an Outcome as a dict."""
    status = os.waitpid(child, os.WUNTRACED)[1]
    code = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
    told: dict[str, Any] = {"struck": None, "instants": [], "threads": 0}
    for line in files["told"].read_text().splitlines():
        told.update(json.loads(line))
    texts = {name: files[name].read_text() for name in ("output", "error")}
    return {"code": code, "process": child, **texts, **told}


def go_on(process: int) -> None:
    """Let a stopped process go on until it ends."""
    os.kill(process, signal.SIGCONT)
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)


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


OPTIONS = ("--max-len", "64", "--shard-size", "14KB", "--workers", "2")
TEXTS = [f"Document {number} has a few words, and ends. " * (1 + number % 7) for number in range(60)]


def make_inputs(folder: Path, packers: Packers) -> None:
    """Make what the commands of `SCENARIOS` read."""
    from transformers import PreTrainedTokenizerFast

    from packer.text.tokenizer import train_byte_level

    write_arrow(folder / "mapped.arrow", made_documents(300))
    write_mixed(folder / "mixed", made_documents(300))
    (folder / "texts").mkdir()
    for number in range(3):
        lines = (json.dumps({"text": text}) + "\n" for text in TEXTS[number::3])
        (folder / "texts" / f"{number}.jsonl").write_text("".join(lines))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train_byte_level(TEXTS, 300), eos_token="<|end|>")
    tokenizer.save_pretrained(folder / "tokenizer")
    job = Job(arguments=("pack", f"{folder}/mapped.arrow", "-o", f"{folder}/packed", *OPTIONS), root=f"{folder}/none")
    assert packers.run(job)[0].code == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A command that writes `{case}/out`, and what is there before it runs."""

    command: tuple[str, ...]

    old: tuple[str, ...] = ()
    """Command that wrote the output which this one replaces, and beside which users put files of theirs."""

    unfinished: bool = False
    """Whether the old command was killed before it was done."""

    exchanges: bool = True
    """Whether the file system can exchange two folders."""

    ranks: int = 1

    record: str = "manifest.json"

    other: tuple[str, ...] = ()
    """Command that another process runs when this one stands still and its output is removed."""


def _pack(source: str, *more: str) -> tuple[str, ...]:
    return ("pack", "{folder}/" + source, "-o", "{case}/out", *OPTIONS, *more)


def _tokenize(*more: str) -> tuple[str, ...]:
    folder = "{folder}"
    return ("tokenize", f"{folder}/texts", "--tokenizer", f"{folder}/tokenizer", "-o", "{case}/out", *more)


def _export(to: str, *more: str) -> tuple[str, ...]:
    return ("export", "{folder}/packed", "--to", to, "-o", "{case}/out", "--workers", "2", *more)


_REPLACED = {"command": _pack("mapped.arrow", "--overwrite"), "old": _pack("mixed", "--seed", "9")}
_EXPORTED = {"record": "_export.json", "command": _export("maxtext", "--overwrite"), "old": _export("torchtune")}
_TOKENIZED = {"record": "tokenized.json", "command": _tokenize("--overwrite"), "old": _tokenize("--no-eos")}
SCENARIOS = {
    "mapped": Scenario(command=_pack("mapped.arrow"), other=_pack("mapped.arrow", "--seed", "5")),
    "decoded": Scenario(command=_pack("mixed"), other=_pack("mixed", "--seed", "5")),
    "--no-sync": Scenario(command=_pack("mixed", "--no-sync")),
    "one of several ranks": Scenario(
        command=_pack("mixed", "--ranks", "0/1"), other=_pack("mixed", "--seed", "5", "--ranks", "0/1")
    ),
    "--overwrite": Scenario(**_REPLACED, other=_pack("mapped.arrow", "--seed", "5", "--overwrite")),
    "--overwrite, two renames": Scenario(**_REPLACED, exchanges=False),
    "--overwrite, unfinished": Scenario(**_REPLACED, unfinished=True),
    "tokenize": Scenario(command=_tokenize(), record="tokenized.json", other=_tokenize("--no-eos")),
    "tokenize --overwrite": Scenario(**_TOKENIZED),
    "tokenize --overwrite, two renames": Scenario(**_TOKENIZED, exchanges=False),
    "export": Scenario(command=_export("maxtext"), record="_export.json", other=_export("torchtune")),
    "export --overwrite": Scenario(**_EXPORTED),
    "export --overwrite, two renames": Scenario(**_EXPORTED, exchanges=False),
    "two ranks": Scenario(command=_pack("mixed"), ranks=2),
}


class LostError(AssertionError):
    """A promise was broken."""


def require(holds: bool, complaint: str) -> None:
    if not holds:
        raise LostError(complaint)


class Trial:
    """A scenario: what is there before its command, what an undisturbed run makes of it, and its instants."""

    def __init__(self, packers: Packers, inputs: Path, folder: Path, scenario: Scenario) -> None:
        self._packers, self._inputs, self._folder, self.scenario = packers, inputs, folder, scenario
        self._cases = itertools.count()
        self.theirs: dict[str, str] = {}
        folder.mkdir()
        before = folder / "before"
        before.mkdir()
        if scenario.old:
            strike = Strike(kind="SIGKILL", operation="rename data-00005") if scenario.unfinished else None
            self._run(before, scenario.old, strike)
            if not scenario.unfinished:
                made = contents(before / "out")
                add_files_of_users(before / "out")
                self.theirs = dict(contents(before / "out").items() - made.items())
        self.old = {} if scenario.unfinished else contents(before / "out")
        case = self.case()
        begun = time.perf_counter()
        (outcome, *_) = self._run(case)
        self.seconds = time.perf_counter() - begun
        require(outcome.code == 0 and not outcome.error, f"an undisturbed command failed: {outcome.error}")
        self.instants, self.expected = outcome.instants, contents(case / "out")
        self.stages = tuple(stage for stage in STAGES if stage in dict(self.instants))
        require(self.theirs.items() <= self.expected.items(), "files of users are lost")
        self.shards = sum(name.startswith("data-0") for name in self.expected.keys() - self.theirs.keys())

    def _run(self, case: Path, command: Iterable[str] = (), strike: Strike | None = None, log: Path | None = None):
        filled = [each.format(folder=self._inputs, case=case) for each in command or self.scenario.command]
        count = self.scenario.ranks
        ranks = [("--ranks", f"{rank}/{count}") for rank in range(count)] if count > 1 else [()]
        how = {"root": str(case), "strike": strike, "exchanges": self.scenario.exchanges, "log": log and str(log)}
        return self._packers.run(*(Job(arguments=(*filled, *rank), **how) for rank in ranks))

    def case(self) -> Path:
        """Make a folder with what is there before the command."""
        return Path(shutil.copytree(self._folder / "before", self._folder / f"{next(self._cases)}", symlinks=True))

    def spread(self, each: int, stages: Sequence[str] = STAGES) -> list[int]:
        """Return numbers of instants: at most `each` of every stage, evenly spread."""
        found = []
        for stage in stages:
            numbers = [number for number, (struck, _) in enumerate(self.instants) if struck == stage]
            step = max(1.0, len(numbers) / each)
            found += [numbers[int(place * step)] for place in range(min(each, len(numbers)))]
        return sorted(found)

    def run(self, case: Path, strike: Strike) -> Outcome:
        """Run the command in a case's folder and strike it."""
        return self._run(case, strike=strike)[0]

    # faults

    def strike(self, *strikes: Strike) -> tuple[str, int]:
        """Strike the command, again as it resumes, then let it end; return the first stage and the shards in place.

        The stage is "outside" if the strike had no instant, "none" if the command had ended before. Raises a LostError
        if a promise is broken.
        """
        case, found = self.case(), []
        others = self._data(case)
        for strike in strikes:
            before = self._data(case) - others
            outcome = self.run(case, strike)
            check_end(outcome, strike)
            stage, operation = outcome.struck or ("none" if outcome.code == 0 else "outside", "")
            there = self._data(case) - others
            complete = self._check(case)
            require(before <= there or complete, "finished files were written again")
            if not (strike.kind == "SIGKILL" or strike.repeats or operation.startswith(("remove", "rmdir"))):
                left = [path for path in case.rglob(".packer/**/*") if is_temporary(path)]
                require(not left or complete, f"temporary files were left: {left}")
            found.append((stage, sum(name.startswith("data-0") for name, _ in there)))
        without = ()
        if complete and "--overwrite" in self.scenario.command:
            there = set()
            without = ("--overwrite",) * (next(self._cases) % 2)  # or all of it is made once more
        self._end(case, there, set() if complete else self._finished(case), without)
        shutil.rmtree(case)
        return found[0]

    def resume_old(self, instant: int) -> None:
        """Kill the command that replaces an unfinished output, then run the command that began it."""
        case, fresh = self.case(), self._folder / "fresh"
        if not fresh.exists():
            fresh.mkdir()
            self._run(fresh, self.scenario.old)
        self.run(case, Strike(kind="SIGKILL", instant=instant))
        (outcome,) = self._run(case, self.scenario.old)
        if outcome.code:
            require("--overwrite" in outcome.error and outcome.error.count("\n") == 1, outcome.error)
        else:
            require(contents(case / "out") == contents(fresh / "out"), "what was left of the other was used")
        shutil.rmtree(case)

    def lose_power(self, disk: Disk, end: int, draw: random.Random, tried: set[str]) -> None:
        """Lose power before an operation, check what is there, and run the same command."""
        tree = disk.after_failure(end, draw)
        if digest(tree) in tried:
            return
        tried.add(digest(tree))
        case = self._folder / f"{next(self._cases)}"
        case.mkdir()
        write_tree(tree, case)
        self._check(case, with_users=False)
        if end == len(disk.operations):
            require(contents(case / "out") == self.expected, "a finished command is undone")
        self._end(case)
        shutil.rmtree(case)

    def disk(self) -> Disk:
        """Return what an undisturbed run does to the disk."""
        self.theirs, case = {}, self._folder / "recorded"
        case.mkdir()
        if self.scenario.old:
            self._run(case, self.scenario.old)
        self.old = contents(case / "out")
        disk = Disk.before(case)
        self._run(case, log=self._folder / "log")
        disk.read(self._folder / "log")
        self.expected = contents(case / "out")
        assert disk.after_failure(len(disk.operations), random.Random(0))
        return disk

    def stand_still(self, strike: Strike, *, until: str) -> str:
        """Stop the command, remove its output and let another process write there; return the line of the first one.

        It goes on when the other is done, or when that one is about to name a file `until`.
        """
        case = self.case()
        stopped = self.run(case, replace(strike, kind="SIGSTOP"))
        require(stopped.code is None, f"not stopped but ended: {stopped.code}")
        at = stopped.struck  # as threads take turns, an instant has not the same number in every run
        for path in case.iterdir():
            if path.name != "out" or not self.old:
                inside = [path] if int(case.name) % 2 else list(path.iterdir())  # the folder itself may stay
                for each in inside:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
        goes_on = Strike(kind="other goes on", operation=f"rename {until}", stopped=stopped.process) if until else None
        (other,) = self._run(case, self.scenario.other, goes_on)
        require((other.code, other.error) == (0, ""), f"the other command failed ({at}): {other.error}")
        made = contents(case / "out")
        (outcome,) = self._packers.run(Job(stopped=stopped.process))
        require(contents(case / "out") == made == self._other_alone, f"the other output was changed ({at})")
        left = sorted(
            str(path.relative_to(case)) for path in case.rglob("*") if path.relative_to(case).parts[0] != "out"
        )
        require(not left, f"something was left beside the output ({at}): {left}")
        shutil.rmtree(case)
        require("Traceback" not in outcome.error, outcome.error)
        return outcome.error.splitlines()[-1] if outcome.code == 1 else ""

    @functools.cached_property
    def _other_alone(self) -> dict[str, str]:
        """What the other command writes where no process stands still."""
        case = self.case()
        self._run(case, self.scenario.other)
        made = contents(case / "out")
        shutil.rmtree(case)
        return made

    def run_together(self, count: int) -> list[Outcome]:
        """Run the command several times at once."""
        case = self.case()
        filled = tuple(each.format(folder=self._inputs, case=case) for each in self.scenario.command)
        outcomes = self._packers.run(*[Job(arguments=filled, root=str(case))] * count)
        require(contents(case / "out") == self.expected, "the output is that of neither")
        return outcomes

    # promises

    def _check(self, case: Path, *, with_users: bool = True) -> bool:
        """Check what a fault leaves; return whether the output is complete."""
        found = contents(case / "out")
        complete = self._own(found) == self._own(self.expected)
        if self.scenario.record in found:
            require(complete or self._own(found) == self._own(self.old), "an output looks complete and is not")
        elif self.old:
            moved = contents(case / ".out.packer-old")
            kept = not self.scenario.exchanges and self._own(moved) == self._own(self.old)
            require(kept, "the complete output is lost")
        if with_users:
            everywhere = [contents(path).items() for path in case.iterdir()]
            require(self.theirs.items() <= set().union(*everywhere), "files of users are lost")
        return complete

    def _own(self, found: Mapping[str, str]) -> dict[str, str]:
        return {name: each for name, each in found.items() if name not in self.theirs}

    def _data(self, case: Path) -> set[tuple[str, int]]:
        """Return name and inode of finished files of rows or tokens, which must not be written again."""
        if self.scenario.command[0] == "export":
            return set()
        paths = (path for path in case.rglob("data-*.arrow") if path.name not in self.theirs)
        return {(path.name, path.stat().st_ino) for path in paths}

    def _finished(self, case: Path) -> set[str]:
        """Return the names of temporary files from which tasks need not be made again."""
        works = [path for path in case.rglob(".packer/*") if re.fullmatch(r"[0-9a-f]{16}", path.name)]
        files = (path.relative_to(work.parent) for work in works for path in work.glob("checkpoints/*-*/*"))
        return {str(path).replace("/", "-") for path in files}

    def _end(
        self,
        case: Path,
        there: Iterable[tuple[str, int]] = (),
        finished: Iterable[str] = (),
        without: tuple[str, ...] = (),
    ) -> None:
        """Run the same command, which must come to the expected output and make nothing again."""
        outcomes = self._run(case, [word for word in self.scenario.command if word not in without])
        for outcome in outcomes:
            require(outcome.code == 0, f"the same command failed: {outcome.error}")
            require(not outcome.error, f"the same command complained: {outcome.error}")
        require(contents(case / "out") == self.expected, "the same command came to other bytes")
        require([path.name for path in case.iterdir()] == ["out"], "something was left beside the output")
        again = set(there) - self._data(case)
        require(not again, f"finished files were written again: {sorted(again)}")
        opened = [operation.split()[1] for _, operation in outcomes[0].instants if operation.startswith("open ")]
        again = {name.rpartition(".")[0] for name in opened} & set(finished)
        require(not again, f"tasks were done again: {sorted(again)}")


def check_end(outcome: Outcome, strike: Strike) -> None:
    """Require that a command ended as its user may expect."""
    require(outcome.threads == 0, f"{outcome.threads} threads were left")
    if strike.kind == "SIGKILL":
        require(outcome.code in (-signal.SIGKILL, 0), f"exit code {outcome.code} after a kill: {outcome.error}")
        return
    if strike.kind in SIGNALS and strike.repeats and outcome.code < 0:
        return  # the second signal ends at once, as a kill does
    if outcome.code != 0:
        expected = {"SIGINT": 130, "SIGTERM": 143}.get(strike.kind, 1)
        require(outcome.code == expected, f"exit code {outcome.code}, not {expected}: {outcome.error}")
    if strike.kind == "RuntimeError":  # an error of packer's own: its traceback is wanted
        return
    lines = outcome.error.splitlines()
    require(len(lines) == (outcome.code != 0), f"not one line: {outcome.error}")
    require(all(line.startswith("packer: ") for line in lines), f"not a line of ours: {outcome.error}")


def is_temporary(path: Path) -> bool:
    """Whether a file under .packer/ is one that was to be renamed: data-00001-of-00009.arrow.8f0c..., say."""
    return re.fullmatch(r"[^.].*\.[0-9a-f]{32}", path.name) is not None


def add_files_of_users(out: Path) -> None:
    """Put files of a user into an output, some named as packer names its own."""
    for name in ("NOTES.md", ".hidden", "runs/first/log.txt", "data-mine.arrow", "data-00000-of-00099.arrow"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    (out / "latest").symlink_to("runs/first")


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file, or the target of a link, by path; without packer's own work folder."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file() and not name.startswith(".packer/"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


if __name__ == "__main__":
    serve()
