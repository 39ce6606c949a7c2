"""`stats` predicts the rows that `pack` writes: groups, pairs and limits, from every kind of source."""

import numpy as np
import pytest

import packer
from tests.helpers.kept import KINDS as ALL_KINDS
from tests.helpers.kept import write

KINDS = [("arrow", "jsonl"), ("shuffled", "memory"), ("parquet", "saved")]


def documents_of(count: int) -> list[list[int]]:
    """Return documents of random lengths; some are empty."""
    lengths = np.random.default_rng(count).integers(0, 40, count)
    return [[document + 1] * int(length) for document, length in enumerate(lengths)]


def predicted_and_packed(source, out, options):
    return packer.stats(source, **options), packer.pack(source, out, sync=False, **options)


def assert_alike(found, made):
    totals = made.totals
    assert found.rows == totals.rows
    assert found.totals.lower_bound == totals.lower_bound
    assert (found.documents, found.tokens) == (totals.documents, totals.tokens)
    assert found.totals.documents_packed == totals.documents_packed
    assert found.totals.tokens_packed == totals.tokens_packed
    assert found.totals.efficiency == totals.efficiency


def two_sources(folder, kinds):
    """Write a source of each kind, with the group of every document."""
    found = []
    for number, (count, kind) in enumerate(zip((200, 60), kinds, strict=True)):
        (folder / str(number)).mkdir()
        groups = [f"group {document % 13}" if document % 7 != 3 else None for document in range(count)]
        columns = {"input_ids": documents_of(count), "source": groups}
        found.append(write(folder / str(number), kind, columns))
    return found


def preferences(folder, kind):
    random = np.random.default_rng(8)
    columns = {}
    for side, token in (("chosen", 3), ("rejected", 4)):
        lists = [[1, *[token] * int(n)] for n in random.integers(1, 60, 120)]
        columns[f"{side}_input_ids"] = lists
        columns[f"{side}_labels"] = [[-100, *tokens[1:]] for tokens in lists]
    columns["source"] = [f"group {number % 9}" if number % 5 != 3 else None for number in range(120)]
    return write(folder, kind, columns)


# ---- stats ----


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_stats_predict_the_rows_of_groups(tmp_path, kinds):
    options = {"max_len": 48, "algorithm": "bfd", "group_by": "source", "long": "truncate"}
    for number, source in enumerate(two_sources(tmp_path, kinds)):
        assert_alike(*predicted_and_packed(source, tmp_path / f"out-{number}", options))


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_stats_predict_the_rows_within_limits(tmp_path, kinds):
    sources = []
    for number, (count, kind) in enumerate(zip((200, 60), kinds, strict=True)):
        (tmp_path / str(number)).mkdir()
        images = [document * 5 % 8 for document in range(count)]
        columns = {"input_ids": documents_of(count), "images": images}
        sources.append(write(tmp_path / str(number), kind, columns))
    options = {"max_len": 48, "long": "drop", "limit": ["images:7"], "max_segments": 6}
    for number, source in enumerate(sources):
        out = tmp_path / f"out-{number}"
        found, made = predicted_and_packed(source, out, options)
        assert_alike(found, made)
        assert found.rows > packer.stats(source, **{**options, "limit": []}).rows
        lengths = packer.stats(source, **{**options, "max_len": [32, 48]}).outcomes
        assert lengths[-1].rows == found.rows
        assert max(int(row["images"].sum()) for row in packer.load(out)) <= 7


PAIRS = [{}, {"group_by": "source"}, {"algorithm": "sequential"}]


@pytest.mark.nightly(after=len(ALL_KINDS))  # each with one of the options
@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, PAIRS[(number + first) % 3]) for first in range(3) for number, kind in enumerate(ALL_KINDS)],
    ids=str,
)
def test_stats_predict_the_rows_of_pairs(tmp_path, kind, options):
    source = preferences(tmp_path, kind)
    options = {"max_len": 64, "algorithm": "bfd", "pairs": True, "long": "drop", **options}
    found, made = predicted_and_packed(source, tmp_path / "out", options)
    assert_alike(found, made)
    assert sum(made.totals.documents_dropped.values())


# ---- on the command line ----
