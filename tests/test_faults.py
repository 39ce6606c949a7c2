"""Faults at any instant of a pack: the output is complete, or the same command resumes to the same bytes.

The instants are those of `tests/helpers/faults.py`: before every operation on the disk, in the middle of every write,
and whenever a pack reports progress. Every trial checks that nothing was lost.
"""

import contextlib
import functools
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.faults import (
    ERRNOS,
    EXCEPTIONS,
    SCENARIOS,
    Packers,
    Strike,
    Trial,
    contents,
    random_seconds,
    shards_in,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder in memory if possible, where fsync costs nothing; kills do not depend on the disk."""
    with contextlib.ExitStack() as stack:
        shm = Path("/dev/shm")
        if not shm.is_dir():
            yield tmp_path_factory.mktemp("faults")
            return
        made = Path(tempfile.mkdtemp(dir=shm, prefix="packer-"))
        stack.callback(shutil.rmtree, made, ignore_errors=True)
        yield made


@pytest.fixture(scope="module")
def packers(folder):
    with Packers(folder / "packers") as running:
        yield running


@pytest.fixture(scope="module")
def trial_of(packers, folder):
    """Function that returns the trial of a scenario, made once."""
    return functools.cache(lambda name: Trial(packers, SCENARIOS[name], folder / name.replace(" ", "-")))


@pytest.fixture
def decoded(trial_of) -> Trial:
    return trial_of("decoded")


@pytest.mark.nightly(after=len(SCENARIOS))
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("each", [3, 6])
def test_a_kill_at_any_instant_loses_nothing(trial_of, name, each):
    """Kills in every stage, some with only part of the shards committed; with 6 a stage, they are about 200."""
    trial = trial_of(name)
    instants = trial.spread(each, trial.scenario.stages)
    fates = [trial.strike(Strike(kind="SIGKILL", instant=instant)) for instant in instants]
    assert len(fates) >= {"decoded": 35, "mapped": 30}.get(trial.scenario.name, 18) * each // 6
    struck = Counter(fate.stage for fate in fates)
    assert "none" not in struck  # every one of them struck
    for stage in trial.scenario.stages:
        planned = [instant for instant in instants if trial.instants[instant][0] == stage]
        for instant in planned:  # two threads may swap their turns, but not the operations
            if struck[stage] >= min(2, len(planned)):
                break
            operation = re.sub(
                r"\.[0-9a-f]{32}.*", "", trial.instants[instant][1]
            )  # names of temporary files are drawn
            struck[trial.strike(Strike(kind="SIGKILL", operation=operation)).stage] += 1
        assert struck[stage] >= min(2, len(planned)), (stage, struck)
    halfway = [fate for fate in fates if 0 < fate.shards < trial.shards and not fate.complete]
    assert len(halfway) >= each // 2


def test_a_kill_from_outside_at_a_random_moment_loses_nothing(decoded):
    struck = 0
    for seconds in random_seconds(50, decoded.seconds):  # more than enough: a pack may take longer or less long again
        struck += decoded.strike(Strike(kind="SIGKILL", seconds=seconds)).stage == "outside"
        if struck == 5:
            break
    assert struck


@pytest.mark.nightly(after=2)
@pytest.mark.parametrize("seed", range(4))
def test_a_pack_killed_again_as_it_resumes_loses_nothing(decoded, seed):
    instants = decoded.spread(4)
    first = instants[len(instants) // 3 + seed]
    again = instants[2 + 3 * seed]
    assert decoded.strike(*(Strike(kind="SIGKILL", instant=instant) for instant in (first, again))).stage != "none"


def test_half_decoded_copies_of_killed_runs_do_not_accumulate(decoded):
    case = decoded.case()
    for _ in range(3):
        outcome = decoded.run(case, Strike(kind="SIGKILL", operation="tell decode"))  # while a copy is being written
        assert outcome.struck == ("spill", "tell decode")
        assert 1 <= len(list((case / "out" / ".packer").glob("*/spill/.*"))) <= 2  # of two workers


@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_pack_with_one_line_and_it_can_be_resumed(decoded, kind):
    fates = [decoded.strike(Strike(kind=kind, instant=instant)) for instant in decoded.spread(3)]
    assert len({fate.stage for fate in fates}) >= 7
    case = decoded.case()
    outcome = decoded.run(case, Strike(kind=kind, instant=decoded.spread(3, ["write"])[1]))
    word, code = {"SIGINT": ("interrupted", 130), "SIGTERM": ("terminated", 143)}[kind]
    assert (outcome.code, outcome.error) == (code, f"packer: {word}; the same command resumes where it stopped\n")
    assert 0 < len(shards_in(case / "out")) < decoded.shards


def test_a_second_interrupt_ends_at_once_and_loses_nothing(decoded):
    for instant in decoded.spread(3):
        decoded.strike(Strike(kind="SIGINT", instant=instant, repeats=True))


@pytest.mark.nightly(after=3)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("decoded", kind) for kind in sorted([*ERRNOS, *EXCEPTIONS], reverse=True)),
        *(("--overwrite, two renames", kind) for kind in ("ENOSPC", "RuntimeError")),
    ],
)
def test_a_pack_resumes_after_system_errors_and_dead_workers(trial_of, name, kind):
    trial = trial_of(name)
    instants = trial.spread(2, trial.scenario.stages)
    fates = [trial.strike(Strike(kind=kind, instant=instant)) for instant in instants]
    assert len({fate.stage for fate in fates}) >= len(trial.scenario.stages) - 1
    # a full disk has no effect at instants that need no room
    assert kind == "ENOSPC" or any(0 < fate.shards < trial.shards for fate in fates)


def test_a_second_command_on_the_same_output_is_refused(decoded):
    refused = 0
    for _ in range(5):
        case = decoded.case()
        outcomes = decoded.run_together(case, 3)
        assert contents(case / "out") == decoded.expected
        assert 0 in [outcome.code for outcome in outcomes]
        for outcome in outcomes:
            assert outcome.code == 0 or "by another packer" in outcome.error or "in use" in outcome.error
            assert len(outcome.error.splitlines()) == (outcome.code != 0)
            refused += outcome.code
    assert refused
