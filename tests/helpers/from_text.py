"""What `tests/test_from_text.py` shares with other tests."""

import gzip
from functools import cache
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from tests.helpers.chat_templates import EXACT, WORDS, save_tokenizer
from tests.helpers.pack import segments_in
from tests.helpers.small import shrink
from tests.helpers.writing import write_ipc, write_lines
from tests.helpers.zstd import zstd

pytest.importorskip("transformers")


CHATML = EXACT["chatml"]


MAX_LEN = 64


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "ours", template=CHATML)


@pytest.fixture
def small(monkeypatch):
    """Make pieces and blocks of a few documents."""
    shrink(monkeypatch, piece=1500, record_block=400)


@cache
def texts(count=60):
    random = np.random.default_rng(5)
    words = WORDS.split()
    return [{"text": " ".join(random.choice(words, random.integers(1, 30)))} for _ in range(count)]


@cache
def chats(count=40):
    random = np.random.default_rng(6)
    words = WORDS.split()

    def say(role):
        return {"role": role, "content": " ".join(random.choice(words, random.integers(1, 9)))}

    return [
        {"messages": [say(role) for _ in range(random.integers(1, 4)) for role in ("user", "assistant")]}
        for _ in range(count)
    ]


@cache
def pairs(count=50):
    random = np.random.default_rng(7)
    words = WORDS.split()
    draw = lambda: " ".join(random.choice(words, random.integers(1, 12)))  # noqa: E731
    return [{"prompt": draw(), "completion": " " + draw()} for _ in range(count)]


def shards(manifest):
    return [shard.xxh3_128 for shard in manifest.shards]


def pack(source, out, tokenizer, **options):
    options = {"max_len": MAX_LEN, "algorithm": "bfd", "sync": False, **options}
    return packer.pack(source, out, tokenizer=tokenizer, **options)


def documents_of(packed: Path) -> dict[int, tuple[list[int], list[int]]]:
    """Return the tokens and labels of every document, joined from its segments."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for document, _, tokens, labels in sorted(segments_in(packer.load(packed))):
        before = found.get(document, ([], []))
        found[document] = before[0] + tokens, before[1] + labels
    return found


def write_formats(folder: Path, records) -> dict[str, object]:
    """Write the same records in every supported form."""
    table = pa.Table.from_pylist(records)
    lines = write_lines(folder / "rows.jsonl", records)
    made: dict[str, object] = {"jsonl": lines, "gz": folder / "rows.jsonl.gz", "zst": folder / "rows.jsonl.zst"}
    made["gz"].write_bytes(gzip.compress(lines.read_bytes()))
    made["zst"].write_bytes(zstd.compress(lines.read_bytes()))
    pq.write_table(table, folder / "rows.parquet", row_group_size=7)
    made["stream"] = write_ipc(folder / "stream.arrow", table, rows=11)
    made["lz4"] = write_ipc(folder / "lz4.arrow", table, compression="lz4", rows=11)
    made["file"] = write_ipc(folder / "file.arrow", table, stream=False, rows=11)
    dataset = datasets.Dataset.from_list(records)
    dataset.save_to_disk(folder / "saved", num_shards=3)
    return {
        **made,
        "parquet": folder / "rows.parquet",
        "saved": folder / "saved",
        "object": dataset,
        "indices": datasets.Dataset.from_list(records[::-1]).select(range(len(records) - 1, -1, -1)),
        "mapped": datasets.load_from_disk(folder / "saved"),
    }
