"""Power failures at any operation: the output is complete, or the same command resumes to the same bytes."""

import contextlib
import functools
import itertools
import json
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from packer.text.tokenizer import train_byte_level
from tests.helpers import faults
from tests.helpers.faults import Job, Outcome, Packers, contents, made_documents, write_arrow, write_mixed
from tests.helpers.power_loss import Disk, digest, write_tree

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that writes `out` in a case's folder, and the commands that are run there before."""

    arguments: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    exchanges: bool = True
    ranks: int = 1
    record: str = "manifest.json"


PACK = ("pack", "{folder}/mixed", "-o", "{case}/out", *faults.OPTIONS)
MAPPED = ("pack", "{folder}/first.arrow", "-o", "{case}/out", *faults.OPTIONS)
COMMANDS = {
    "pack": Command(arguments=MAPPED),
    "pack, decoded": Command(arguments=PACK),
    "pack --overwrite": Command(arguments=(*MAPPED, "--overwrite"), before=((*MAPPED, "--seed", "9"),)),
    "pack --overwrite, two renames": Command(
        arguments=(*MAPPED, "--overwrite"), before=((*MAPPED, "--seed", "9"),), exchanges=False
    ),
    "pack on two ranks": Command(arguments=PACK, ranks=2),
    "export": Command(
        arguments=("export", "{folder}/packed", "--to", "torchtitan", "-o", "{case}/out", "--workers", "2"),
        record="_export.json",
    ),
    "export --overwrite": Command(
        arguments=("export", "{folder}/packed", "--to", "torchtitan", "-o", "{case}/out", "--overwrite"),
        before=(("export", "{folder}/packed", "--to", "torchtune", "-o", "{case}/out"),),
        record="_export.json",
    ),
    "tokenize": Command(
        arguments=("tokenize", "{folder}/texts.jsonl", "--tokenizer", "{folder}/tokenizer", "-o", "{case}/out"),
        record="tokenized.json",
    ),
}


TEXTS = [f"Document {number} has a few words, and ends. " * (1 + number % 7) for number in range(60)]


class Trial:
    """A command, what it does to the disk, and what it makes of a disk after a power failure."""

    def __init__(self, packers: Packers, folder: Path, name: str) -> None:
        self._packers, self._folder, self._command = packers, folder, COMMANDS[name]
        self._cases, self._tried = itertools.count(), set()
        self._place = folder / name.replace(" ", "-").replace(",", "")
        self._place.mkdir()
        case = self._place / "recorded"
        case.mkdir()
        for arguments in self._command.before:
            self._run(case, arguments)
        self.old = contents(case / "out")
        self.disk = Disk.before(case)
        self._run(case, self._command.arguments, log=str(self._place / "log"))
        self.disk.read(self._place / "log")
        self.expected = contents(case / "out")
        assert self.disk.after_failure(len(self.disk.operations), random.Random(0))

    def _run(self, case: Path, arguments, log: str | None = None) -> list[Outcome]:
        filled = [each.format(folder=self._folder, case=case) for each in arguments]
        ranks = [("--ranks", f"{rank}/2") for rank in range(2)] if self._command.ranks == 2 else [()]
        return self._packers.run(
            *(
                Job(arguments=(*filled, *rank), root=str(case), log=log, exchanges=self._command.exchanges)
                for rank in ranks
            )
        )

    def fail(self, end: int, draw: random.Random) -> bool:
        """Lose power before an operation, check what is there, and run the same command; return whether it was new."""
        tree = self.disk.after_failure(end, draw)
        if digest(tree) in self._tried:
            return False
        self._tried.add(digest(tree))
        case = self._place / f"case-{next(self._cases)}"
        case.mkdir()
        write_tree(tree, case)
        self._check(case, end)
        shutil.rmtree(case)
        return True

    def _check(self, case: Path, end: int) -> None:
        out = case / "out"
        there = contents(out)
        if self._command.record in there:
            whole = there in (self.expected, self.old)
            assert whole, (end, "an output looks complete and is not", case)
        elif self.old:
            moved = not self._command.exchanges and contents(case / ".out.packer-old") == self.old
            assert moved, (end, "the complete output is lost", case)
        if end == len(self.disk.operations):
            assert there == self.expected, (end, "a finished command is undone", case)
        if there == self.expected and not (out / ".packer").exists():
            return
        for outcome in self._run(case, self._command.arguments):
            assert outcome.code == 0, (end, case, outcome.error)
            assert outcome.error == "", (end, case, outcome.error)
        assert contents(out) == self.expected, (end, "the same command came to other bytes", case)
        assert [path.name for path in case.iterdir()] == ["out"], (end, case)


@pytest.fixture(scope="module")
def trial_of():
    """Function that makes the trial of a command, in memory if possible: inodes of tmpfs are not used again."""
    with contextlib.ExitStack() as stack:
        shm = Path("/dev/shm")
        folder = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None, prefix="packer-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        packers = stack.enter_context(Packers(folder / "packers"))
        write_arrow(folder / "first.arrow", made_documents(300))
        write_mixed(folder / "mixed", made_documents(300))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=train_byte_level(TEXTS, 300), eos_token="<|end|>")
        tokenizer.save_pretrained(folder / "tokenizer")
        for options in (("-o", f"{folder}/packed"), ("-o", f"{folder}/index", "--index-only")):
            job = Job(arguments=("pack", f"{folder}/first.arrow", *options, *faults.OPTIONS), root=str(folder / "none"))
            assert packers.run(job)[0].code == 0
        yield functools.cache(lambda name: Trial(packers, folder, name))


@pytest.mark.nightly(after=len(COMMANDS))
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("states", [8, 400])
def test_a_power_failure_at_any_operation_loses_nothing(trial_of, name, states):
    trial = trial_of(name)
    draw = random.Random(name)
    last = len(trial.disk.operations)
    ends = [last, *(int((number + draw.random()) / states * last) for number in range(states))]
    assert sum(trial.fail(end, draw) for end in ends) > min(states // 2, last)
