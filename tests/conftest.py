"""What all tests share: the kernels' cache, Hypothesis settings, and the folder of test data."""

import fcntl
import multiprocessing
import os
import signal
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings

from packer.algorithms import jit

pytest.register_assert_rewrite("tests.helpers")

ROOT = Path(__file__).parent.parent


def _kernel_cache() -> Path:
    """A folder for Numba's cache that changes with the sources of kernels and with the switch for bounds checks.

    Numba itself does not notice when a helper in another file changes, nor when bounds checks are switched on.
    """
    mode = "checked" if os.environ.get("NUMBA_BOUNDSCHECK") else "usual"
    return ROOT / ".pytest_cache" / "numba" / f"{jit.state_of_sources()}-{mode}"


# a shell that starts the tests in the background lets them, and all that they start, ignore Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)

# before anything imports Numba
os.environ.setdefault("NUMBA_CACHE_DIR", str(_kernel_cache()))


def _compile_once() -> None:
    """Let a process that needs a kernel which another one compiles wait for it, and load it from the cache."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_kernel = Dispatcher.compile
    locks = Path(os.environ["NUMBA_CACHE_DIR"]) / "locks"
    locks.mkdir(parents=True, exist_ok=True)

    def compile_alone(kernel, signature):
        with global_compiler_lock, (locks / kernel.py_func.__qualname__).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(kernel, signature)

    Dispatcher.compile = compile_alone


if not os.environ.get("NUMBA_DISABLE_JIT"):
    _compile_once()

# kernels run compiled in the process of the tests, however small the arrays; commands in other processes decide
jit.compile_from_now_on()

# the first example of a property pays for compiling its kernels
settings.register_profile("packer", deadline=None, max_examples=15)
settings.register_profile("nightly", deadline=None, max_examples=300)
# the kernels again, in other modes; as plain Python, an example takes long
few = 8 if os.environ.get("NUMBA_DISABLE_JIT") else 15
settings.register_profile("kernels", deadline=None, max_examples=few)
settings.load_profile("packer")


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="also run the tests that CI leaves to the night")


LONG = {
    *("algorithms", "damaged_files", "docs", "families", "crashes", "isolation", "loss"),
    *("optimal", "outputs", "pack", "pages", "ranks", "ray", "remote_sources"),
    *("signals", "stored_outputs", "text_corpora", "text_pairs", "training", "verifying_parts"),
}
"""Modules of tests that take longest. They begin first, so that no process has one left when the others are done."""


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)
    if config.getoption("nightly"):
        return
    kept, left, seen = [], [], Counter()
    for item in items:
        marker = item.get_closest_marker("nightly")
        function = item.nodeid.partition("[")[0]
        (left if marker and seen[function] >= marker.kwargs.get("after", 0) else kept).append(item)
        seen[function] += marker is not None
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """Run the tests of a module in one process: its fixtures, models and servers are made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # a module of few tests may be a long one, and must not come last
    return LoadFileScheduling(config, log)


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Path:
    """A packed dataset of several shards; tests/helpers/packed_rows.py says of what."""
    from tests.helpers.packed_rows import MAX_LEN, make

    return make(tmp_path_factory.mktemp("several"), shard_size=3 * 3 * 4 * MAX_LEN)


@pytest.fixture(scope="session")
def dataset(packed):
    """The same, opened."""
    import packer

    return packer.load(packed)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> str:
    """The folder of a small tokenizer without a chat template."""
    pytest.importorskip("transformers")
    from tests.helpers.chat_templates import save_tokenizer

    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours")


@pytest.fixture(scope="session")
def another_process():
    """Function that calls a function in another process, one for all tests; arguments and result are pickled."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Torch on one thread: for models as small as ours, threads only wait for each other."""
    if torch := sys.modules.get("torch"):  # imported with the modules of tests, by now
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_lines_of_progress():
    """No line of progress every 15 seconds, of a command that takes that long on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer.progress.INTERVAL", float("inf"))
        yield


@pytest.fixture
def no_gpu(monkeypatch):
    """Torch without a GPU: results are compared with those of the CPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of histograms, lengths and tokenized sets that PACKER_TEST_DATA names; skips without it."""
    folder = os.environ.get("PACKER_TEST_DATA")
    if not folder:
        pytest.skip("PACKER_TEST_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def store_server():
    """An S3 server with faults on request, in a process of its own; see tests/helpers/store_server.py."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    from tests.helpers.store_server import StoreServer

    with StoreServer.started() as server:
        yield server


@pytest.fixture(params=["folder", "store"])
def out(request, tmp_path):
    """Path of an output, on the disk and in object storage."""
    return (tmp_path if request.param == "folder" else request.getfixturevalue("bucket")) / "out"


@pytest.fixture
def bucket(store_server, monkeypatch):
    """A path in object storage: an empty bucket, whose server answers without faults."""
    from packer.stores import RemotePath

    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    store_server.faults()
    return RemotePath.of(f"s3://{store_server.new_bucket()}")
