"""Memory of the size of an object: parts that are asked for are there, others are not read."""

import random
import threading

import numpy as np
import pytest

from packer.errors import PackerError
from packer.stores import mirror as mirrors
from packer.stores.mirror import CHUNK, fetch, held, mirror, resident_bytes

CONTENT = random.Random(3).randbytes(40 * CHUNK + 123)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No mirrors of other tests."""
    monkeypatch.setattr(mirrors, "_mirrors", mirrors._Mirrors())


@pytest.fixture
def opened(bucket):
    path = bucket / "data.bin"
    path.write_bytes(CONTENT)
    return np.frombuffer(mirror(path, len(CONTENT)), np.uint8)


def address(view, at=0):
    return view.ctypes.data + at


def test_what_is_held_is_there_and_is_removed_afterwards(opened):
    starts, lengths = [5, 7 * CHUNK - 1, 40 * CHUNK], [10, 2 * CHUNK, 123]
    with held([address(opened, start) for start in starts], lengths):
        for start, length in zip(starts, lengths, strict=True):
            assert opened[start : start + length].tobytes() == CONTENT[start : start + length]
        assert resident_bytes() == 5 * CHUNK  # the first, four that the second touches, and the last
    assert resident_bytes() == 0
    assert not opened.any()


def test_what_is_fetched_stays(opened, store_server):
    fetch([address(opened)], [CHUNK])
    store_server.faults()
    with held([address(opened), address(opened, CHUNK)], [10, 10]):
        assert opened[: 2 * CHUNK].tobytes() == CONTENT[: 2 * CHUNK]
    assert opened[:CHUNK].tobytes() == CONTENT[:CHUNK]
    assert not opened[CHUNK:].any()
    assert store_server.faults() == {"GET": 1}


def test_a_run_of_chunks_is_one_request(opened, store_server):
    store_server.faults()
    fetch([address(opened, at) for at in range(0, 20 * CHUNK, 1000)], [1000] * 656)
    assert store_server.faults() == {"GET": 1}
    assert opened[: 20 * CHUNK].tobytes() == CONTENT[: 20 * CHUNK]


def test_threads_share_what_they_hold(opened):
    wrong = []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(15):
            starts = [chance.randrange(len(CONTENT) - 1) for _ in range(5)]
            lengths = [chance.randrange(1, min(3 * CHUNK, len(CONTENT) - start) + 1) for start in starts]
            with held([address(opened, start) for start in starts], lengths):
                for start, length in zip(starts, lengths, strict=True):
                    if opened[start : start + length].tobytes() != CONTENT[start : start + length]:
                        wrong.append((start, length))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert resident_bytes() == 0


def test_a_failed_request_leaves_nothing_behind(opened, store_server):
    store_server.faults(status=403)
    with pytest.raises(PermissionError), held([address(opened)], [10]):
        pass
    assert resident_bytes() == 0
    store_server.faults()
    with held([address(opened)], [10]):
        assert opened[:10].tobytes() == CONTENT[:10]


def test_ordinary_memory_is_passed_over(opened):
    ordinary = np.arange(1000)
    with held([ordinary.ctypes.data], [8000]):
        assert resident_bytes() == 0


def test_memory_of_closed_mirrors_is_given_back(opened, bucket):
    base = mirrors._mirrors
    known = len(base._objects)
    fetch([address(opened)], [CHUNK])
    del opened
    other = mirror(bucket / "other", 10)
    assert len(base._objects) <= known + 1
    del other
    assert len(base._objects) <= known


def test_objects_side_by_side_are_not_mixed_up(bucket):
    views = []
    for number in range(5):
        content = bytes([number + 1]) * (CHUNK + number)
        (bucket / str(number)).write_bytes(content)
        views.append(np.frombuffer(mirror(bucket / str(number), len(content)), np.uint8))
    with held([address(view) for view in views], [len(view) for view in views]):
        for number, view in enumerate(views):
            assert (view == number + 1).all()


def test_a_full_disk_is_told_with_the_remedy(opened, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mirrors.os, "pwrite", full)
    with pytest.raises(PackerError, match=r"No space left on device, but .* set TMPDIR to another folder"):
        fetch([address(opened)], [10])
    assert resident_bytes() == 0
