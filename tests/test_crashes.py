"""Faults at any instant of a command: its output is complete, or the same command resumes to the same bytes.

The table has a scenario (command, and what is there before) and a fault in each cell; every cell keeps all promises of
`Trial`: nothing looks complete that is not, the old output stays until the new one is complete, no file of a user is
lost, nothing finished is made again, nothing is left over, and the user is told in one line.
"""

import contextlib
import functools
import random
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.crashes import ERRNOS, EXCEPTIONS, SCENARIOS, Packers, Strike, Trial, make_inputs

pytestmark = pytest.mark.slow

KINDS = ("SIGKILL", "SIGINT", "SIGTERM", *ERRNOS, *EXCEPTIONS)
STRUCK = [name for name in SCENARIOS if name != "two ranks"]
OFTEN = {  # instants of each stage; the other cells are left to the night
    **{(name, "SIGKILL"): 1 for name in ("one of several ranks", "--overwrite", "--overwrite, two renames")},
    **{(name, "SIGKILL"): 1 for name in ("tokenize", "export --overwrite")},
    ("decoded", "SIGKILL"): 2,
    ("decoded", "SIGINT"): 1,
    ("--overwrite, two renames", "ENOSPC"): 1,
    ("tokenize", "SIGTERM"): 1,
}
CELLS = [*((*cell, each) for cell, each in OFTEN.items()), *((name, kind, 6) for name in STRUCK for kind in KINDS)]
SYNCED_OFTEN = ["--overwrite, two renames", "tokenize", "two ranks"]
SYNCED = [name for name, scenario in SCENARIOS.items() if name != "--no-sync" and not scenario.unfinished]
SYNCED.sort(key=lambda name: name not in SYNCED_OFTEN)
DONE, WORKING = "", "data-00005"  # when a process that stood still goes on: the first file that the other names then
STANDING = [("decoded", WORKING), *((name, DONE) for name in ("decoded", "--overwrite"))]
OTHERS = [(name, until) for name in SCENARIOS if SCENARIOS[name].other for until in (WORKING, DONE)]
MADE_AGAIN = "was finished, removed or started again by another packer: repeat the command, or choose another --output"


@pytest.fixture(scope="module")
def folder():
    """Folder in memory if possible, where fsync costs nothing and inodes are not used again."""
    shm = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None, prefix="packer-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def new_trial(folder):
    """Function that makes a new trial of a scenario."""
    with contextlib.ExitStack() as stack:
        packers = stack.enter_context(Packers(folder / "packers"))
        make_inputs(folder, packers)
        yield lambda name, role="": Trial(packers, folder, folder / (name + role), SCENARIOS[name])


@pytest.fixture(scope="module")
def trial_of(new_trial):
    """Function that returns the trial of a scenario, made once."""
    return functools.cache(new_trial)


@pytest.mark.nightly(after=len(OFTEN))
@pytest.mark.parametrize(("name", "kind", "each"), CELLS)
def test_a_fault_at_any_instant_loses_nothing(trial_of, name, kind, each):
    trial = trial_of(name)
    instants = trial.spread(each)
    fates = [trial.strike(Strike(kind=kind, instant=instant)) for instant in instants]
    struck = Counter(stage for stage, _ in fates)
    if kind == "SIGKILL":
        assert "none" not in struck
        for stage in trial.stages:  # two threads may swap their turns, but not the operations
            planned = [instant for instant in instants if trial.instants[instant][0] == stage]
            operations = (re.sub(r"\.[0-9a-f]{32}.*", "", trial.instants[instant][1]) for instant in planned)
            while not struck[stage]:
                struck[trial.strike(Strike(kind=kind, operation=next(operations)))[0]] += 1
        if name == "decoded" or (each > 1 and name == "mapped"):
            assert any(0 < shards < trial.shards for _, shards in fates)
    else:
        assert len(struck.keys() - {"none"}) >= len(trial.stages) - 2


def test_a_kill_from_outside_at_a_random_moment_loses_nothing(trial_of):
    trial, draw, struck = trial_of("decoded"), random.Random(0), 0
    for _ in range(50):  # a pack may take twice as long, or half
        seconds = draw.uniform(0, trial.seconds)
        struck += trial.strike(Strike(kind="SIGKILL", seconds=seconds))[0] == "outside"
        if struck == 3:
            break
    assert struck


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("seed", range(4))
def test_a_pack_killed_again_as_it_resumes_loses_nothing(trial_of, seed):
    trial = trial_of("decoded")
    instants = trial.spread(4)
    first, again = instants[len(instants) // 3 + seed], instants[2 + 3 * seed]
    assert trial.strike(*(Strike(kind="SIGKILL", instant=instant) for instant in (first, again)))[0] != "none"


def test_the_rest_of_a_pack_that_is_replaced_is_never_taken_for_either(trial_of):
    trial = trial_of("--overwrite, unfinished")
    for instant in trial.spread(3, ("claim", "plan", "write")):
        trial.resume_old(instant)


def test_half_decoded_copies_of_killed_runs_do_not_accumulate(trial_of):
    trial = trial_of("decoded")
    case = trial.case()
    for _ in range(3):
        outcome = trial.run(case, Strike(kind="SIGKILL", operation="tell decode"))  # while a copy is being written
        assert outcome.struck == ("spill", "tell decode")
        assert 1 <= len(list((case / "out" / ".packer").glob("*/spill/.*"))) <= 2  # of two workers


@pytest.mark.parametrize(("kind", "word", "code"), [("SIGINT", "interrupted", 130), ("SIGTERM", "terminated", 143)])
def test_a_signal_ends_a_pack_with_a_line_that_says_how_it_is_resumed(trial_of, kind, word, code):
    trial = trial_of("decoded")
    outcome = trial.run(trial.case(), Strike(kind=kind, instant=trial.spread(3, ["write"])[1]))
    assert (outcome.code, outcome.error) == (code, f"packer: {word}; the same command resumes where it stopped\n")


def test_a_second_interrupt_ends_at_once_and_loses_nothing(trial_of):
    for instant in trial_of("decoded").spread(1):
        trial_of("decoded").strike(Strike(kind="SIGINT", instant=instant, repeats=True))


def test_a_second_command_on_the_same_output_is_refused(trial_of):
    refused = 0
    for _ in range(5):
        outcomes = trial_of("decoded").run_together(3)
        assert 0 in [outcome.code for outcome in outcomes]
        for outcome in outcomes:
            assert outcome.code == 0 or "by another packer" in outcome.error or "in use" in outcome.error
            assert len(outcome.error.splitlines()) == (outcome.code != 0)
            refused += outcome.code
    assert refused


@pytest.mark.nightly(after=len(SYNCED_OFTEN))
@pytest.mark.parametrize("name", SYNCED)
@pytest.mark.parametrize("states", [8, 400])
def test_a_power_failure_at_any_operation_loses_nothing(new_trial, name, states):
    trial, draw, tried = new_trial(name, f" {states}"), random.Random(name), set()
    disk = trial.disk()
    last = len(disk.operations)
    for end in [last, *(int((number + draw.random()) / states * last) for number in range(states))]:
        trial.lose_power(disk, end, draw, tried)
    assert len(tried) > min(states // 2, last)


@pytest.mark.nightly(after=len(STANDING))
@pytest.mark.parametrize(("name", "until"), [*STANDING, *(cell for cell in OTHERS if cell not in STANDING)])
def test_a_process_that_stands_still_while_another_begins_again_does_no_harm(trial_of, name, until):
    trial = trial_of(name)
    in_place = not trial.old and trial.scenario.record == "manifest.json"
    early = () if in_place else ("claim",)  # what has not begun beside the output begins when it goes on
    at = trial.spread(1, [stage for stage in trial.stages if stage not in (*early, "swap")])
    lines = [trial.stand_still(Strike(kind="SIGSTOP", instant=instant), until=until) for instant in at]
    assert all("by another packer" in line or "with seed 5, not 0" in line for line in lines)
    assert sum(MADE_AGAIN in line for line in lines) >= len(lines) // 2


@pytest.mark.parametrize("file", ["data-00003", "dataset_info.json", "manifest.json"])
def test_a_process_that_stands_still_before_it_names_a_file_makes_no_folder_again(trial_of, file):
    strike = Strike(kind="SIGSTOP", operation=f"rename {file}")
    assert MADE_AGAIN in trial_of("--overwrite").stand_still(strike, until=DONE)
