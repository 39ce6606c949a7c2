"""Several ranks pack into one folder or store: the bytes of one process, whoever dies, and whenever they start."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import packer
from packer.engines import ranks as ranks_module
from packer.engines.ranks import Heartbeats, RankOf, Ranks, rank_of
from packer.errors import PackerError, SourceError
from packer.output.unfinished_output import Output
from packer.stores.local_files import FileLock
from packer.stores.store import Folder
from tests.helpers.commands import succeeded
from tests.helpers.kills import Killed, kill
from tests.helpers.pack import hashes
from tests.helpers.ranks import as_arrow, as_files, as_rows, in_threads, options_of, run_ranks, scored
from tests.helpers.small import shrink

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    shrink(monkeypatch, heartbeat=0.05)


CASES = {
    "decoded": (as_files, {"keep": ["score"]}),
    "one file": (lambda folder: scored(folder / "rows.jsonl"), {}),
    "packed before": (as_rows, {}),
    "drawn": (as_arrow, {"algorithm": "mixed", "balance_ranks": 3}),
    "by patterns": (as_arrow, {"algorithm": "bfd"}),
    "in order": (as_arrow, {"algorithm": "sequential"}),
    "groups": (as_files, {"group_by": "score", "algorithm": "bfd"}),
}


FOLDERS = [("folder", "decoded", 1), ("folder", "decoded", 2), *(("folder", name, 5) for name in CASES)]
STORES = [("store", "decoded", 3)]
BY_NIGHT = [
    *(("folder", name, 2) for name in list(CASES)[1:]),
    *(("store", name, 1) for name in ("decoded", "by patterns", "in order", "groups")),
]


@pytest.mark.parametrize(
    ("out", "name", "count"),
    [*FOLDERS, *STORES, *(pytest.param(*case, marks=pytest.mark.nightly) for case in BY_NIGHT)],
    indirect=["out"],
)
def test_ranks_write_the_bytes_of_one_process(tmp_path, out, name, count):
    make, extra = CASES[name]
    source, options = make(tmp_path), options_of(extra)
    expected = packer.pack(source, tmp_path / "expected", **options)
    assert len(expected.shards) > 3
    assert run_ranks(source, out, count, options=options) == [expected] * count
    assert hashes(out) == hashes(tmp_path / "expected")
    assert not (out / ".packer").exists()
    assert not list(packer.verify(out))


def test_ranks_that_never_come_are_replaced(tmp_path, out):
    source, options = as_files(tmp_path), options_of({"algorithm": "mixed"})
    expected = packer.pack(source, tmp_path / "expected", **options)
    assert run_ranks(source, out, 4, only=[1, 3], options=options, timeout=0.4) == [expected] * 2
    assert hashes(out) == hashes(tmp_path / "expected")


def test_a_rank_that_comes_late_finds_the_output_complete(tmp_path):
    source, options = as_files(tmp_path), options_of({})
    (expected,) = run_ranks(source, tmp_path / "out", 2, only=[0], options=options, timeout=0.1)
    assert run_ranks(source, tmp_path / "out", 2, only=[1], options=options) == [expected]


def test_a_rank_whose_output_another_pack_completes_says_so_in_one_line(tmp_path, out):
    """It waits for another rank, and notices the manifest of a pack with other options."""
    source, options = as_files(tmp_path), options_of({})

    def replace_it():
        while not (out / ".packer" / "ranks" / "0").is_file():
            time.sleep(0.01)
        time.sleep(0.3)
        while out.exists() if isinstance(out, Path) else out.remove_all():  # the waiting rank still writes there
            shutil.rmtree(out, ignore_errors=True)
        return packer.pack(source, out, seed=5, **options)

    waiting, other = in_threads(partial(packer.pack, source, out, ranks="0/2", **options), replace_it)
    assert other.options.seed == 5
    assert isinstance(waiting, PackerError)
    assert "another packer" in str(waiting)


def test_every_process_has_its_share(tmp_path, monkeypatch):
    from packer.pipeline.write_shards import ShardTask

    written, write = {}, ShardTask.__call__

    def counted(task, shard, observe=iter):
        written.setdefault(shard, []).append(threading.current_thread().name)
        return write(task, shard, observe)

    monkeypatch.setattr(ShardTask, "__call__", counted)
    run_ranks(as_arrow(tmp_path), tmp_path / "out", 3, options=options_of({}))
    assert {len(times) for times in written.values()} == {1}  # no shard was written twice


def test_an_error_in_the_source_ends_all_ranks_and_leaves_nothing(tmp_path):
    source, options = as_files(tmp_path), options_of({})
    with (source / "4.jsonl").open("a") as file:
        file.write('{"input_ids": [1, -5]}\n')
    results = run_ranks(source, tmp_path / "out", 3, options=options, timeout=5)
    assert {type(result) for result in results} == {SourceError}
    # the number of the document is known if other ranks have decoded the files before this one
    assert all(
        re.search(r"4\.jsonl line 65\)?: 'input_ids' holds -5 .* on_error='skip'$", str(result)) for result in results
    )
    assert not (tmp_path / "out").exists()
    (source / "4.jsonl").write_text((source / "3.jsonl").read_text())
    assert isinstance(run_ranks(source, tmp_path / "out", 2, options=options)[0], packer.Manifest)


def test_other_options_are_refused_while_ranks_work_and_after(tmp_path, monkeypatch):
    source = as_arrow(tmp_path)
    out = tmp_path / "out"
    monkeypatch.setattr("packer.pipeline.packing.write_shards", lambda *_: 1 / 0)
    assert isinstance(run_ranks(source, out, 1, options=options_of({}))[0], ZeroDivisionError)
    (error,) = run_ranks(source, out, 1, options=options_of({"seed": 5}))
    assert isinstance(error, PackerError)
    advice = "repeat that command to finish it, or remove it to start afresh"  # --overwrite is refused
    assert str(error).endswith(f"is an unfinished pack with seed 0, not 5: {advice}")


def test_what_ranks_began_one_process_finishes_and_the_other_way_round(tmp_path, monkeypatch):
    source, options = as_files(tmp_path), options_of({})
    expected = packer.pack(source, tmp_path / "expected", **options)
    with monkeypatch.context() as broken:
        broken.setattr("packer.pipeline.packing.write_shards", lambda *_: 1 / 0)
        run_ranks(source, tmp_path / "one", 3, options=options)
        with pytest.raises(ZeroDivisionError):
            packer.pack(source, tmp_path / "other", **options)
    assert packer.pack(source, tmp_path / "one", **options) == expected
    assert run_ranks(source, tmp_path / "other", 2, options=options) == [expected] * 2
    assert hashes(tmp_path / "one") == hashes(tmp_path / "other") == hashes(tmp_path / "expected")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": "2"}, "'2' is no rank: write R/N"),
        ({"ranks": "2/2"}, "'2/2' is no rank: write R/N with R from 0 to N - 1, as in 0/4, or env"),
        ({"ranks": "many"}, "'many' is no rank: write R/N"),
        ({"ranks": "env"}, "found none of RANK/WORLD_SIZE, SLURM_PROCID/SLURM_NTASKS, SKYPILOT_NODE_RANK/SKY"),
        ({"ranks": "0/2", "overwrite": True}, "overwrite cannot be used with ranks"),
        ({"ranks": "0/2", "sync": False}, "ranks needs synced files"),
    ],
)
def test_wrong_ranks_are_refused_in_one_line(tmp_path, monkeypatch, arguments, message):
    for names in ranks_module._VARIABLES:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    with pytest.raises(PackerError) as told:
        packer.pack(as_arrow(tmp_path), tmp_path / "out", max_len=64, **arguments)
    assert message in str(told.value)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, RankOf(3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, RankOf(1, 2)),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "8"}, RankOf(0, 8)),
    ],
)
def test_env_reads_what_launchers_set(environ, expected):
    assert rank_of("env", environ) == expected
    with pytest.raises(PackerError, match="must be from 0 to"):
        rank_of("env", {"RANK": "2", "WORLD_SIZE": "2"})


def store_in(folder):
    """Store of an output in a folder that was claimed."""
    (folder / ".packer").mkdir(exist_ok=True)
    return Folder(folder, temporaries=".packer")


def engine(folder, rank, count, patience):
    return Ranks(
        rank=rank,
        ranks=count,
        workers=2,
        heartbeats=Heartbeats(store=store_in(folder), patience=patience),
        is_complete=lambda: False,
    )


def shown(ranks):
    """Show the heartbeat of a rank."""
    return ranks.heartbeats.shown(ranks.rank, ranks.is_complete)


def test_a_rank_that_only_works_slowly_is_not_replaced(tmp_path):
    slow, waiting = engine(tmp_path, 0, 2, 2), engine(tmp_path, 1, 2, 2)
    done, ran = set(), []

    def work_slowly():
        with shown(slow):
            time.sleep(2.5)
            ran.append(("slow", 0))
            done.add(0)

    thread = threading.Thread(target=work_slowly)
    thread.start()
    time.sleep(0.1)
    with shown(waiting):
        for tasks in waiting.assigned([0], lambda _: done):
            ran += [("waiting", task) for task in tasks]
    thread.join()
    assert ran == [("slow", 0)]


def test_clocks_of_other_machines_do_not_matter(tmp_path, monkeypatch):
    one, other = engine(tmp_path, 0, 2, 2), engine(tmp_path, 1, 2, 2)
    with shown(one):
        for shift in (-3600, 3600):
            monkeypatch.setattr(time, "time", lambda shift=shift: 1e9 + shift)
            os.utime(tmp_path / ".packer" / "ranks" / "0", (1e9 + shift, 1e9 + shift))
            until = time.monotonic() + 1.2
            while time.monotonic() < until:
                assert other.heartbeats.alive([0]) == {0}
                time.sleep(0.02)
    assert not other.heartbeats.alive([0])  # it has left


def test_of_two_ranks_that_finish_at_the_same_time_one_prints_the_summary(tmp_path, monkeypatch):
    finish = Output.finish

    def finish_late(self, record, files):
        return finish(self, record, files) and finish(self, record, files)  # the first is that of the other rank

    monkeypatch.setattr(Output, "finish", finish_late)
    assert succeeded("pack", as_arrow(tmp_path), "-o", tmp_path / "out", "--max-len", 64, "--ranks", "0/1") == ""
    assert list(packer.verify(tmp_path / "out")) == []


def test_a_file_system_without_hard_links_is_named_and_enough_for_one_process(tmp_path, monkeypatch):
    def refused(path, target):
        raise PermissionError(errno.EPERM, "Operation not permitted", str(target), None, str(path))

    monkeypatch.setattr(Path, "hardlink_to", refused)
    source, options, out = as_arrow(tmp_path), options_of({}), tmp_path / "out"
    told = r"has no hard links, by which .* agree \(Operation not permitted\): use one process, or a folder on another "
    with pytest.raises(PackerError, match=told):
        packer.pack(source, out, ranks="0/1", **options)
    packer.pack(source, out, **options)


@pytest.mark.nightly
@pytest.mark.slow
def test_one_rank_prints_the_summary_and_the_environment_names_the_rank(tmp_path):
    source = as_arrow(tmp_path)
    words = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(tmp_path / "out"), "--max-len", "64"]
    running = [
        subprocess.Popen(
            [*words, "--ranks", "env", "--shard-size", "6KB"],
            cwd=ROOT,
            env={**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert sorted(out.startswith("Packed ") for out, _ in outputs) == [False, True]


def started(source, out, rank, count, *, struck_at="no stage", signal="SIGKILL"):
    """Start a rank in a process of its own that is killed or stopped before it names a file of a stage."""
    script = f"""
import os, signal
from pytest import MonkeyPatch
from packer.__main__ import main
from tests.helpers.kills import named
named(MonkeyPatch(), lambda name, write: os.kill(os.getpid(), signal.{signal}) if {struck_at!r} in name else write())
main()
"""
    words = ["pack", str(source), "-o", str(out), "--max-len", "64", "--shard-size", "6KB", "--algorithm", "mixed"]
    words += ["--ranks", f"{rank}/{count}", "--workers", "1"]
    return subprocess.Popen([sys.executable, "-c", script, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.nightly(after=2)
@pytest.mark.parametrize(
    ("out", "stage"),
    [
        *(("folder", "data-00003"), ("store", "partitions-"), ("folder", "partitions-"), ("store", "data-00003")),
        *((place, stage) for place in ("folder", "store") for stage in ("00003-00000.arrow", "manifest.json")),
    ],
    indirect=["out"],
)
def test_ranks_killed_at_any_stage_are_replaced(tmp_path, out, monkeypatch, stage):
    """Ranks 0 and 1 kill themselves; a third one finishes what they leave."""
    shrink(monkeypatch, everywhere=True, heartbeat=0.2, rank_patience=2, partition_tokens=1)
    source = as_files(tmp_path)
    packer.pack(source, tmp_path / "expected", **options_of({"algorithm": "mixed"}))
    running = [started(source, out, rank, 3, struck_at=stage) for rank in (0, 1)]
    last = started(source, out, 2, 3)
    told = last.communicate(timeout=120)[1]
    assert last.returncode == 0, told
    for process in running:
        process.communicate(timeout=120)
    assert -signal.SIGKILL in {process.returncode for process in running}
    assert hashes(out) == hashes(tmp_path / "expected")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("begun_before", [True, False])
def test_a_rank_that_stops_while_it_prepares_the_output_is_replaced(tmp_path, monkeypatch, begun_before):
    source, out, options = as_files(tmp_path), tmp_path / "out", options_of({"algorithm": "mixed", "workers": 1})
    packer.pack(source, tmp_path / "expected", **options)
    if begun_before:  # with another lock, and another request
        with monkeypatch.context() as killing:
            kill(killing, "data-00003-of")
            with pytest.raises(Killed):
                packer.pack(source, out, **options)
    slow = started(source, out, 0, 2, struck_at="request.json", signal="SIGSTOP")
    os.waitpid(slow.pid, os.WUNTRACED)
    shrink(monkeypatch, rank_patience=0.5)
    packer.pack(source, out, ranks="1/2", **options)
    assert hashes(out) == hashes(tmp_path / "expected")
    os.kill(slow.pid, signal.SIGCONT)
    assert slow.communicate(timeout=120)[1] == ""
    assert slow.returncode == 0
    assert hashes(out) == hashes(tmp_path / "expected")


def paths_in(out):
    if not isinstance(out, Path):
        return [str(path) for path in out.files()]
    return [f"{folder}/{name}" for folder, _, names in os.walk(out) for name in names]


@pytest.mark.nightly(after=1)  # in a folder
@pytest.mark.slow
def test_all_ranks_killed_and_others_started_end_in_the_same_bytes(tmp_path, out, monkeypatch):
    shrink(monkeypatch, everywhere=True, heartbeat=0.2, rank_patience=2, partition_tokens=1)
    source, options = as_files(tmp_path), options_of({"algorithm": "mixed"})
    expected = packer.pack(source, tmp_path / "expected", **options)
    for name in ("request.json", "partitions-", "data-"):
        running = [started(source, out, rank, 2) for rank in range(2)]
        deadline = time.monotonic() + 60
        while not any(name in path for path in paths_in(out)) and None in {each.poll() for each in running}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for process in running:
            process.kill()
            process.communicate()
    assert run_ranks(source, out, 3, options=options, timeout=5) == [expected] * 3
    assert hashes(out) == hashes(tmp_path / "expected")


def test_two_processes_of_one_rank_are_told_so(tmp_path, caplog):
    one, other = engine(tmp_path, 1, 2, 9), engine(tmp_path, 1, 2, 9)
    with shown(one):
        time.sleep(0.2)
        assert not caplog.records
        with shown(other):
            deadline = time.monotonic() + 60
            while not caplog.records:
                assert time.monotonic() < deadline
                time.sleep(0.02)
    (warning, *_) = caplog.messages
    assert warning.startswith("another process is rank 1 and does the same work: give every process")
    assert len(caplog.messages) <= 2  # each says it once


def test_two_processes_of_one_rank_do_no_harm(tmp_path, out):
    source, options = as_files(tmp_path), options_of({"ranks": "0/1", "workers": 2})
    expected = packer.pack(source, tmp_path / "expected", **options)
    assert in_threads(*3 * [partial(packer.pack, source, out, **options)]) == [expected] * 3
    assert hashes(out) == hashes(tmp_path / "expected")


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("algorithm", ["mixed", "bfd", "sequential"])
def test_what_another_process_of_a_rank_completes_at_any_moment_is_returned(tmp_path, algorithm):
    """It removes the checkpoints that this process goes on to read."""
    source, options = as_files(tmp_path), options_of({"ranks": "0/1", "workers": 2, "algorithm": algorithm})
    told = []
    expected = packer.pack(source, tmp_path / "expected", progress=lambda *step: told.append(step), **options)
    for moment in range(0, len(told), max(1, len(told) // 7)):
        out, steps = tmp_path / f"out{moment}", []

        def complete(*step, out=out, steps=steps, moment=moment):
            steps.append(step)
            if len(steps) == moment + 1:
                assert packer.pack(source, out, **options) == expected

        assert packer.pack(source, out, progress=complete, **options) == expected
        assert hashes(out) == hashes(tmp_path / "expected")


@pytest.fixture
def locks_stay_until_they_are_closed(monkeypatch):
    """Let a lock that is removed stay in its folder under another name until it is closed, as over NFS and FUSE."""
    unlink, release, stays = os.unlink, FileLock.release, ".nfs0001"

    def unlinked(path, *, dir_fd=None):
        if Path(path).name == "lock":
            os.rename(path, Path(path).with_name(stays), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        elif Path(path).name == stays:
            raise OSError(errno.EBUSY, "it is open")
        else:
            unlink(path, dir_fd=dir_fd)

    def released(self):
        descriptors = Path("/proc/self/fd")
        path = (descriptors / str(self._descriptor)).resolve()
        release(self)
        if path.name == stays and path not in [each.resolve() for each in descriptors.iterdir()]:
            unlink(path)

    monkeypatch.setattr(os, "unlink", unlinked)
    monkeypatch.setattr(FileLock, "release", released)


@pytest.mark.usefixtures("locks_stay_until_they_are_closed")
def test_a_complete_output_has_no_work_folder_where_open_files_stay_when_they_are_removed(tmp_path):
    source, options, steps = as_files(tmp_path), options_of({"ranks": "0/1", "workers": 1}), []

    def complete(*step):
        steps.append(step)
        if len(steps) == 1:
            packer.pack(source, tmp_path / "out", **options)

    packer.pack(source, tmp_path / "out", progress=complete, **options)
    assert steps
    assert not (tmp_path / "out" / ".packer").exists()


@pytest.mark.usefixtures("locks_stay_until_they_are_closed")
def test_a_fault_in_the_source_leaves_no_folder_where_open_files_stay_when_they_are_removed(tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text('{"input_ids": [1, -5]}\n')
    with pytest.raises(SourceError, match="-5"):
        packer.pack(source, tmp_path / "out", max_len=64)
    assert not (tmp_path / "out").exists()
