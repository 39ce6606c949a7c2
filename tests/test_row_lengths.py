"""Rows of several lengths, side by side: figures against obvious twins, the table and its sentence."""

import json
import re
from dataclasses import replace
from functools import partial

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.options import PackOptions
from packer.pipeline.collect_figures import compare
from packer.report.figures import Comparison, Figures
from packer.report.measures import KEYS_OF_MATRICES
from tests.helpers import commands, naive
from tests.helpers.made_figures import figures_of, rows_of

rows_of_lengths = st.lists(st.lists(st.integers(1, 9000), min_size=1, max_size=5), min_size=1, max_size=20)


run, succeeded = partial(commands.run, "stats"), partial(commands.succeeded, "stats")


# Work


def test_the_keys_at_which_attention_costs_as_much_as_matrices_are_those_of_llama_2_7b() -> None:
    layers, width, hidden, words = 32, 4096, 11008, 32000
    weights = layers * (4 * width * width + 3 * width * hidden) + words * width
    assert 2 * weights / (4 * layers * width) == KEYS_OF_MATRICES


def test_work_of_known_rows() -> None:
    rows = rows_of([[3, 1], [4]], 4)
    assert rows.keys_per_token == (6 + 1 + 10) / 8
    assert rows.work_peak == pytest.approx((4 * KEYS_OF_MATRICES + 10) / (4 * KEYS_OF_MATRICES + 8.5))
    share = rows.attention_share
    assert share == 2.125 / (KEYS_OF_MATRICES + 2.125)


@given(rows_of_lengths)
def test_work_is_that_of_one_token_after_the_other(rows: list[list[int]]) -> None:
    found = rows_of(rows, 45_000)
    keys, peak = naive.work_of_rows(rows, KEYS_OF_MATRICES)
    assert found.keys_per_token == pytest.approx(keys)
    assert found.work_peak == pytest.approx(peak)
    assert found.work_peak >= 1


# Figures of a length


def figures_at(lengths: list[int], options: PackOptions) -> Figures:
    documents = datasets.Dataset.from_dict({"input_ids": [[1] * length for length in lengths]})
    (found,) = compare(documents, options, "max_len", [options.max_len]).outcomes
    return found


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=40),
    max_len=st.sampled_from([4, 16, 64]),
    long=st.sampled_from(["split", "truncate", "drop"]),
    algorithm=st.sampled_from(["bfd", "auto", "sequential", "wrapped"]),
)
def test_documents_are_split_and_tokens_cut_as_counted_by_hand(lengths, max_len, long, algorithm) -> None:
    placed = {"drop": [0 if length > max_len else length for length in lengths]}.get(long, lengths)
    placed = [min(length, max_len) for length in placed] if long == "truncate" else placed
    if not any(placed):
        return
    found = figures_at(lengths, PackOptions(max_len=max_len, long=long, algorithm=algorithm))
    assert found.totals.tokens_lost == sum(lengths) - sum(placed)
    if algorithm == "wrapped":
        pieces = [segment for row in naive.wrapped(placed, max_len) for segment in row]
    else:
        pieces = naive.cut_documents(placed, max_len, "split")
    documents = [document for document, _, _ in pieces]
    assert found.totals.documents_split == sum(documents.count(document) > 1 for document in set(documents))
    assert found.tokens_without_context == sum(length for _, start, length in pieces if start > 0)
    assert found.row_figures.keys_per_token * sum(placed) == pytest.approx(sum(n * (n + 1) // 2 for _, _, n in pieces))


# The table


def length_of(max_len: int, cut: int, *, lost: int = 0, split: int = 3, rows: int = 10, full: float = 0.99) -> Figures:
    """Figures of documents of 1,000 tokens, of which some are without context or lost."""
    totals = {"documents": 100, "tokens": 1000, "tokens_truncated": lost, "documents_split": split}
    totals["tokens_packed"] = round(full * rows * max_len)
    row_figures = replace(rows_of([[4]], max_len), tokens_after_start=cut)
    return figures_of([1] * 100, max_len=max_len, rows=rows, row_figures=row_figures, totals=totals)


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ([(512, 10, 0), (1024, 9, 0), (2048, 0, 0)], "1,024 is the smallest with less than 1% of the tokens {}."),
        ([(512, 0, 10), (1024, 0, 9)], "1,024 is the smallest with less than 1% of the tokens lost."),
        ([(512, 5, 10), (1024, 5, 4)], "1,024 is the smallest with less than 1% of the tokens {} or lost."),
        ([(512, 0, 0)], "512 is the smallest with less than 1% of the tokens {}."),
        (
            [(512, 50, 0), (1024, 31, 0)],
            "None of these has less than 1% of the tokens {}; 1,024 comes closest: 3.1%.",
        ),
    ],
)
def test_one_sentence_recommends_a_length(lengths, sentence) -> None:
    outcomes = tuple(length_of(max_len, cut, lost=lost) for max_len, cut, lost in lengths)
    found = Comparison(by="max_len", outcomes=outcomes)
    lines = str(found).splitlines()
    assert " ".join(" ".join(lines).split()).endswith(sentence.format("without context"))
    assert max(map(len, lines)) <= 80
    assert ("lost" in lines[1]) == any(lost for _, _, lost in lengths)
    assert "padding" not in "".join(lines)


@pytest.mark.parametrize("lost", [0, 432])
def test_rows_that_are_not_full_have_a_column_that_says_so(lost) -> None:
    for share in (0.875, 0.95):
        length = length_of(131_072, 0, lost=lost, split=0, rows=99_999, full=share)
        found = Comparison(by="max_len", outcomes=(length,))
        _, head, line, *_ = lines = str(found).splitlines()
        assert max(map(len, lines)) <= 80
        shown = dict(zip(*(re.split("  +", words.strip()) for words in (head, line)), strict=True))
        assert shown.get("full") == ("87.5%" if share == 0.875 else None)
        assert ("lost" in shown) == bool(lost)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("lengths") / "documents.parquet"
    lengths = np.random.default_rng([7]).integers(1, 100, 400)
    pq.write_table(pa.table({"input_ids": [np.arange(length, dtype=np.int32) for length in lengths]}), path)
    return path


def test_each_line_is_what_stats_and_pack_say_at_that_length(source, tmp_path) -> None:
    content = json.loads(succeeded(source, "--max-len", "96,32,64", "--json"))
    assert [line["max_len"] for line in content["outcomes"]] == [32, 64, 96]
    for line in content["outcomes"]:
        alone = json.loads(succeeded(source, "--max-len", line["max_len"], "--json"))
        assert line["rows"] == alone["rows"]
        assert line["epoch"] == alone["epoch"]
        assert (content["documents"], content["tokens"]) == (alone["documents"], alone["tokens"])
    text = succeeded(source, "--max-len", "32,64,96")
    assert max(map(len, text.splitlines())) <= 100
    assert f"{content['best']['max_len']:,} is the smallest" in text


def test_one_length_prints_what_it_always_printed(source) -> None:
    assert succeeded(source, "--max-len", 64).startswith("400 documents")
    assert "Padding by batch size" in succeeded(source, "--max-len", "64,64")
