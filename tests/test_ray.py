"""Tasks run on a Ray cluster: the bytes of one process, whatever dies."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import packer
from packer.engines.ray_engine import ray_engine
from packer.errors import PackerError, SourceError
from packer.text.tokenizer import train_byte_level
from packer.text.tokens import SWITCH, gigatoken_version
from tests.helpers.pack import hashes, made_documents, save_arrow
from tests.helpers.ranks import as_arrow, as_files, options_of

ray = pytest.importorskip("ray")

ROOT = Path(__file__).parent.parent


@contextmanager
def cluster_of_two():
    """A cluster of a head without cores and two nodes of one core."""
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)  # Ray's nodes replace it
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    checks = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}  # of nodes; by default 3000 and 5
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": checks}
    started = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        started.add_node(num_cpus=1)
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def in_folder(folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def writes_the_bytes_of_one_process(make, extra, cluster, tmp_path):
    source, options = make(tmp_path), options_of(extra)
    expected = packer.pack(source, tmp_path / "expected", **options)
    steps = []
    with in_folder(tmp_path):  # relative paths are those of the driver
        found = packer.pack(source.name, "out", engine="ray", progress=lambda *step: steps.append(step), **options)
    assert found == expected
    assert hashes(tmp_path / "out") == hashes(tmp_path / "expected")
    written = [(done, total) for stage, done, total in steps if stage == "write"]
    assert written[-1] == (expected.rows * 64, expected.rows * 64)


def tokenizes_by_gigatoken_as_the_library_does(cluster, tmp_path):
    """Workers load gigatoken by themselves, and write what the library tokenizes in one process."""
    train_byte_level(["the quick brown fox jumps"] * 4, 300).save(str(tmp_path / "tokenizer.json"))
    for name in ("a", "b", "c"):
        lines = (json.dumps({"text": f"{name} the quick brown fox {at} jumps over it " * 5}) for at in range(2000))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    arguments = {"tokenizer": str(tmp_path / "tokenizer.json"), "eos": False, "max_len": 1024}
    sources = [tmp_path / f"{name}.jsonl" for name in ("a", "b", "c")]
    with switched_off():
        expected = packer.pack(sources, tmp_path / "expected", **arguments)
    found = packer.pack(sources, tmp_path / "out", engine="ray", **arguments)
    assert [shard.xxh3_128 for shard in found.shards] == [shard.xxh3_128 for shard in expected.shards]
    assert (expected.totals.documents_by_gigatoken, found.totals.documents_by_gigatoken) == (None, 6_000)


@contextmanager
def switched_off():
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        del os.environ[SWITCH]


def raises_an_error_of_a_task_in_one_line(cluster, tmp_path):
    source = as_files(tmp_path)
    with (source / "4.jsonl").open("a") as file:
        file.write('{"input_ids": [1, -5]}\n')
    with pytest.raises(SourceError, match=r"4\.jsonl line 65\): 'input_ids' holds -5") as told:
        packer.pack(source, tmp_path / "out", engine="ray", **options_of({}))
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def kill_when(folder: Path, pattern: str, strike):
    """Strike from a thread as soon as a file appears."""

    def wait():
        while not list(folder.glob(pattern)):
            time.sleep(0.001)
        strike()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def workers():
    """Process ids of Ray's workers, whether they run a task or are about to."""
    found = subprocess.run(["pgrep", "-f", "^ray::(_run|IDLE)"], capture_output=True, text=True, check=False).stdout
    return [int(number) for number in found.split()]


def replaces_killed_workers(cluster, tmp_path):
    source, options = as_arrow(tmp_path), options_of({"algorithm": "mixed"})
    packer.pack(source, tmp_path / "expected", **options)
    killed = []

    def strike():
        for number in workers():
            os.kill(number, signal.SIGKILL)
            killed.append(number)

    thread = kill_when(tmp_path, "out/data-*.arrow", strike)
    packer.pack(source, tmp_path / "out", engine="ray", **options)
    thread.join()
    assert killed
    assert hashes(tmp_path / "out") == hashes(tmp_path / "expected")


def is_busy(node):
    """Whether a node of one core runs a task."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()[node.node_id].get("CPU", 0) == 0


def replaces_nodes_of_a_store(bucket, server, cluster, tmp_path):
    """One is killed while it writes, another after its tasks were done."""
    source, options, out = as_files(tmp_path), options_of({"algorithm": "mixed", "keep": ["score"]}), bucket / "nodes"
    packer.pack(source, tmp_path / "expected", **options)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

    def strike(stage, done, total):
        """Kill the first node when a shard is there, and the second one when it has nothing left to do."""
        if stage != "write" or len(nodes) != (1 if done == total else 2):
            return
        deadline = time.monotonic() + 60
        while is_busy(nodes[0]) != (done < total):  # the cluster learns it a moment later
            assert time.monotonic() < deadline
            time.sleep(0.02)
        cluster.remove_node(nodes.pop(0), allow_graceful=False)

    server.faults(seconds=0.3, methods=["PUT"], contains="/data-")
    made = packer.pack(source, str(out), engine="ray", progress=strike, **options)
    server.faults()
    assert not nodes
    assert hashes(out) == hashes(tmp_path / "expected")
    assert list(packer.verify(str(out), engine="ray")) == []
    shard = out / made.shards[1].file
    shard.write_bytes(shard.read_bytes()[::-1])
    (fault,) = packer.verify(str(out), engine="ray")
    assert fault == f"{shard.name} does not match its hash: it was changed after packing"


def goes_on_in_a_store_after_the_driver_was_killed(bucket, server, cluster, tmp_path):
    source, out = save_arrow(tmp_path / "rows.arrow", made_documents(250)), bucket / "driver"
    command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(out), "--max-len", "64"]
    command += ["--shard-size", "6KB", "--engine", f"ray:{cluster.address}", "--json"]
    server.faults(seconds=0.3, methods=["PUT"], contains="/data-")
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (there := [path for path in out.iterdir() if path.name.startswith("data-")]):
        assert driver.poll() is None
        time.sleep(0.05)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    server.faults()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["found_complete"] is False
    packer.pack(source, tmp_path / "expected", **options_of({}))
    assert 0 < len(there) < len(hashes(tmp_path / "expected"))
    assert hashes(out) == hashes(tmp_path / "expected")


SCENARIOS = {
    "decoded": partial(writes_the_bytes_of_one_process, as_files, {"keep": ["score"]}),
    "error": raises_an_error_of_a_task_in_one_line,
    "workers": replaces_killed_workers,
}


@pytest.mark.slow
def test_a_cluster_writes_the_bytes_of_one_process_and_replaces_killed_workers(tmp_path):
    """One test for all, because a cluster takes long to start and only one process should have one."""
    run_scenarios(SCENARIOS, tmp_path)


@pytest.mark.nightly
def test_a_cluster_goes_on_in_a_store_whatever_dies_and_tokenizes_as_the_library_does(tmp_path, bucket, store_server):
    of_a_store = (replaces_nodes_of_a_store, goes_on_in_a_store_after_the_driver_was_killed)
    stored = {scenario.__name__: partial(scenario, bucket, store_server) for scenario in of_a_store}
    gigatoken = {"gigatoken": tokenizes_by_gigatoken_as_the_library_does} if gigatoken_version() is not None else {}
    run_scenarios({**gigatoken, **stored}, tmp_path)


@pytest.mark.nightly
def test_a_cluster_of_which_the_only_node_dies_is_one_line(tmp_path):
    """Ray by itself would end the driver in lines of its own."""
    from ray.cluster_utils import Cluster

    source, out = save_arrow(tmp_path / "rows.arrow", made_documents(100_000)), tmp_path / "out"
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    command = [sys.executable, "-m", "packer", "pack", str(source), "-o", str(out), "--max-len", "64"]
    command += ["--shard-size", "200KB", "--engine", f"ray:{started.address}"]
    try:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not list(out.glob("data-*.arrow")):
            assert driver.poll() is None
            time.sleep(0.05)
        started.remove_node(started.head_node, allow_graceful=False)
        _, told = driver.communicate(timeout=300)
    finally:
        started.shutdown()
    assert driver.returncode == 1
    line = told.strip().splitlines()[-1]
    assert re.fullmatch(r"packer: Ray's cluster does not answer at \S+ any more: start it again, .* the command", line)


def run_scenarios(scenarios, tmp_path):
    with cluster_of_two() as cluster:
        for name, scenario in scenarios.items():
            folder = tmp_path / name
            folder.mkdir()
            try:
                scenario(cluster, folder)
            except Exception as error:
                raise AssertionError(f"{name}: {error}") from error


def test_ray_does_not_replace_the_handler_of_signals(monkeypatch):
    """Otherwise no signal ends the driver with one line."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, lambda *_: None))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    handler = signal.getsignal(signal.SIGTERM)
    with ray_engine(None, 1):
        assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "refused"), ("nonsense", "it is HOST:PORT, or auto"), ("auto", "no cluster is reached")],
)
def test_a_cluster_that_is_not_there_is_told_at_once(tmp_path, address, reason):
    begun = time.monotonic()
    with pytest.raises(PackerError, match=f"engine ray:{address}: no cluster is reached .*") as told:
        packer.pack(as_arrow(tmp_path), tmp_path / "out", max_len=64, engine=f"ray:{address}")
    assert reason in str(told.value)
    assert "\n" not in str(told.value)
    assert time.monotonic() - begun < 60  # Ray by itself tries for more than ten minutes


def test_a_cluster_that_does_not_start_is_one_line(tmp_path, monkeypatch):
    def fail(**_):
        raise RuntimeError("Failed to start the dashboard\nmore lines")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(PackerError, match=r"^Ray does not start here \(Failed to start the dashboard\): "):
        packer.pack(as_arrow(tmp_path), tmp_path / "out", max_len=64, engine="ray")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "ray", "ranks": "0/2"}, "engine ray and ranks exclude each other"),
        ({"engine": "ray:"}, "'ray:' is not an engine: write threads, ray or ray:ADDRESS"),
        ({"engine": "ray", "sync": False}, "engine ray needs synced files"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tmp_path, arguments, message):
    with pytest.raises(PackerError, match=message):
        packer.pack(as_arrow(tmp_path), tmp_path / "out", max_len=64, **arguments)
