"""What `tests/test_remote_sources.py` shares with other tests."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from packer.stores import RemotePath
from tests.helpers.small import forget_mirrors, shrink
from tests.helpers.writing import write_ipc, write_lines


def documents(seed, count=400):
    chance = random.Random(seed)
    return [[chance.randrange(1000) for _ in range(chance.randrange(1, 90))] for _ in range(count)]


def table(seed, count=400):
    tokens = documents(seed, count)
    chance = random.Random(seed)
    return pa.table(
        {
            "input_ids": pa.array(tokens, pa.list_(pa.int32())),
            "labels": pa.array([[t if chance.random() < 0.5 else -100 for t in each] for each in tokens]),
            "url": [f"https://example.org/{number}" for number in range(count)],
            "score": pa.array([[number / 7] * len(each) for number, each in enumerate(tokens)], pa.list_(pa.float32())),
            "topk": pa.array(
                [[[token, seed, -1] for token in each] for each in tokens], pa.list_(pa.list_(pa.int64()))
            ),
        }
    )


def write_stream(path, seed, count=400, **options):
    write_ipc(path, table(seed, count), rows=50, **options)


def write_documents(path, seed):
    return write_lines(path, [{"input_ids": tokens} for tokens in documents(seed)])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks smaller than the record batches here, so that what is not fetched is missed."""
    shrink(monkeypatch, chunk=1 << 12)
    forget_mirrors(monkeypatch)


def upload(folder: Path, to: RemotePath) -> RemotePath:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            (to / path.relative_to(folder).as_posix()).upload(path)
    return to
