"""What `tests/test_text_corpora.py` shares with other tests."""

import json
from functools import cache

import pytest

from tests.helpers.zstd import zstd

pytest.importorskip("transformers")


SAMPLE = 200  # documents of each corpus, spread over it


@cache
def read(shared_data, name):
    path = next((shared_data / "corpora").glob(f"{name}.jsonl*"))
    with path.open("rb") if path.suffix == ".jsonl" else zstd.open(path, "rb") as file:
        records = [json.loads(line) for line in file.read().splitlines()]
    return records[:: max(1, len(records) // SAMPLE)]
