"""Comparison of algorithms: figures equal those counted naively, in the table and in JSON; failures are reported."""

import json
from collections import Counter
from pathlib import Path

import pytest

import packer
from packer.algorithms import ALGORITHMS, Algorithm
from tests.helpers import commands, naive
from tests.helpers.pack import made_documents, save_arrow


def words(arguments) -> tuple:
    """Return the command that compares all algorithms, unless one is named."""
    return ("stats", *arguments, *(() if "--algorithm" in arguments else ("--algorithm", "all")))


def run(*arguments: object):
    return commands.run(*words(arguments))


def succeeded(*arguments: object) -> str:
    return commands.succeeded(*words(arguments))


def refused(*arguments: object, code: int = 1) -> str:
    return commands.refused(*words(arguments), code=code).removeprefix("packer: ")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """300 documents of 0 to 59 tokens, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return save_arrow(tmp_path / "rows.arrow", made_documents(300)).relative_to(tmp_path)


# ---- the command ----


def test_json_has_the_documented_names_and_the_naive_figures(source):
    content = json.loads(succeeded(source, "--max-len", 40, "--max-segments", 5, "--json"))
    lengths = [len(tokens) for tokens in made_documents(300)]
    assert content["documents"] == 300
    assert content["tokens"] == sum(lengths)
    assert {(row["max_len"], row["max_segments"]) for row in content["outcomes"]} == {(40, 5)}
    rows = {row["algorithm"]: row for row in content["outcomes"]}
    assert rows.keys() == ALGORITHMS.keys()
    assert content["failures"] == {}
    packs = [row["rows"] for row in content["outcomes"]]
    assert packs == sorted(packs)
    for name, twin in (("sequential", naive.sequential), ("wrapped", naive.wrapped)):
        made = twin(lengths, 40, 5)
        pieces = Counter(document for row in made for document, _, _ in row)
        expected = {
            "rows": len(made),
            "segments": sum(map(len, made)),
            "documents_split": sum(count > 1 for count in pieces.values()),
            "within_row_share": pytest.approx(
                naive.within_row_share([[length for _, _, length in row] for row in made]), abs=1e-6
            ),
            "efficiency": pytest.approx(sum(lengths) / (len(made) * 40)),
        }
        assert {field: rows[name][field] for field in expected} == expected
        assert rows[name]["segments_per_row"]["max"] == max(map(len, made))
    segments = [length for _, _, length in naive.cut_documents(lengths, 40, "split")]
    assert rows["ffd"]["rows"] == len(naive.first_fit_decreasing(segments, 40, 5))
    assert rows["bfd"]["rows"] == len(naive.best_fit_decreasing(segments, 40, 5))
    assert rows["bfd"]["speedup"] == len(segments) / rows["bfd"]["rows"]
    assert rows["bfd"]["packing_factor"] == sum(map(bool, lengths)) / rows["bfd"]["rows"]
    assert rows["bfd"]["documents_split"] == sum(length > 40 for length in lengths)
    assert rows["wrapped"]["documents_split"] > rows["bfd"]["documents_split"]
    assert rows["bfd"]["gap"] == rows["bfd"]["rows"] / content["lower_bound"] - 1
    assert rows["wrapped"]["gap"] is None
    assert content["lower_bound"] >= max(-(-sum(segments) // 40), -(-len(segments) // 5))
    assert content["lower_bound"] <= min(row["rows"] for row in rows.values() if row["keeps_whole"])
    assert all(row["seconds"] >= 0 for row in rows.values())


def test_the_table_fits_80_columns_and_has_the_fewest_rows_first_and_marks_the_best(source):
    text = succeeded(source, "--max-len", 40, "--max-segments", 5)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    first = lines.index(next(line for line in lines if line.startswith("  algorithm")))
    table = [line.split() for line in lines[first + 1 : first + 1 + len(ALGORITHMS)]]
    packs = [int(cells[-6].replace(",", "")) for cells in table]
    assert packs == sorted(packs)
    marked = {cells[1]: count for cells, count in zip(table, packs, strict=True) if cells[0] == "*"}
    whole = [count for cells, count in zip(table, packs, strict=True) if "wrapped" not in cells]
    assert marked
    assert set(marked.values()) == {min(whole)}
    assert "optimal" in marked
    assert "wrapped" not in marked


def test_what_is_about_one_algorithm_is_not_compared(source):
    for more, words in {
        ("--max-len", "32,64"): "at one length",
        ("--report", "page.html"): "one length and algorithm",
    }.items():
        assert words in refused(source, *more, code=2)


def test_algorithms_that_refuse_the_options_say_why(source):
    text = succeeded(source, "--max-len", 64, "--align", 8)
    content = json.loads(succeeded(source, "--max-len", 64, "--align", 8, "--json"))
    assert [*content["failures"]] == ["wrapped"]
    error = "--align is 8, and wrapped cuts documents wherever a row ends: choose another --algorithm"
    assert content["failures"]["wrapped"] == error
    assert f"\nwrapped: {error}" in text.replace("\n  ", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("  wrapped ")]
    assert set(line.split()[1:]) == {"-"}


def test_the_published_form_says_which_rows_are_too_long_for_it(source):
    found = json.loads(succeeded(source, "--max-len", 4096, "--json"))
    assert found["failures"]["nnlshp"].startswith("nnlshp lists every way to fill 4096 tokens")
    assert "nnlshp" not in {row["algorithm"] for row in found["outcomes"]}


def fails_with(error: BaseException) -> Algorithm:
    def solve(histogram, max_segments=None, **limits):
        raise error

    return Algorithm(name="bfd", summary="Fails.", solve=solve)


def test_an_algorithm_that_runs_out_of_memory_does_not_end_the_run(source, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "bfd", fails_with(MemoryError("8 TiB")))
    assert "\nbfd: out of memory (8 TiB)" in succeeded(source, "--max-len", 64)


def test_progress_names_every_algorithm(source):
    steps = []
    packer.stats(
        source, max_len=64, algorithm="all", progress=lambda stage, done, total: steps.append((stage, done, total))
    )
    count = len(ALGORITHMS)
    expected = [(f"solve {name}", done, count) for done, name in enumerate(ALGORITHMS)]
    assert steps[-count - 1 :] == [*expected, ("solve", count, count)]


# ---- histograms in files ----


def save_histogram(counts: dict[int, int]) -> str:
    Path("counts.csv").write_text("length,count\n" + "".join(f"{length},{count}\n" for length, count in counts.items()))
    return "counts.csv"


def test_a_histogram_gives_the_figures_of_its_dataset(source):
    lengths = sorted(len(tokens) for tokens in made_documents(300))
    histogram = save_histogram(Counter(lengths))
    in_order = save_arrow(Path("sorted.arrow"), [[1] * length for length in lengths])
    for more in (("--max-len", 32), ("--max-len", 32, "--long", "drop", "--algorithm", "bfd")):
        one, other = (json.loads(succeeded(name, *more, "--json")) for name in (in_order, histogram))
        for content in (one, other):
            for row in content.get("outcomes", []):
                row["seconds"] = 0
            content.get("outcomes", []).sort(key=lambda row: row["algorithm"])
            content.pop("best", None)
            content.pop("source", None)
        assert one == other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("length,count\n5,3\n-7,1\n", "counts.csv row 1: 'length' is '-7'; expected a whole number"),
        ("length,count\n5,\n", "counts.csv row 0: 'count' is ''; expected a whole number"),
        ("length,count\n5\n", "counts.csv row 0"),
        ("length,count\n", "counts.csv: empty dataset"),
        ("length,count\n0,4\n5,0\n", "nothing to pack"),
        ("length,count\n7,2147483647\n", "counts.csv counts 2,147,483,647 documents, and a histogram may have"),
        ("count,length\n5,3\n", "counts.csv: CSV holds text, not lists of tokens"),
    ],
)
def test_an_invalid_histogram_is_refused_in_one_line(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    Path("counts.csv").write_text(text)
    assert words in refused("counts.csv", "--max-len", 64)


def test_a_histogram_has_no_columns(source):
    histogram = save_histogram({5: 3})
    why = "counts.csv is a histogram, which has no topic: give the dataset"
    assert refused(histogram, "--max-len", 64, "--group-by", "topic") == why
