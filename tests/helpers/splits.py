"""What `tests/test_splits.py` shares with other tests."""

import json

import datasets
import pytest

from packer.errors import PackerError
from tests.helpers.opening import open_source
from tests.helpers.sources import read_decoded


def save(folder, names, column="input_ids"):
    """Write a file of one document for each name: file i holds the token i, or the number i as text."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        value = {"input_ids": [number], "text": str(number)}[column]
        if name.endswith(".jsonl"):
            path.write_text(json.dumps({column: value}) + "\n")
        else:
            datasets.Dataset.from_dict({column: [value]}).to_parquet(path)
    return folder


def tokens_of(source, split=None):
    return sorted(tokens[0] for tokens in read_decoded(open_source(source, split=split))[0])


def refused(source, split=None):
    with pytest.raises(PackerError) as caught:
        open_source(source, split=split)
    return str(caught.value)
