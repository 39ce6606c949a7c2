"""Comparison of algorithms: figures equal those counted naively, in the table and in JSON; failures are reported."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from packer.algorithms import ALGORITHMS, Algorithm, OrderAlgorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.jit import compile_seconds, jit
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline import comparing
from packer.sources.number_columns import read_length_counts
from tests.helpers import commands, naive
from tests.helpers.algorithms import jit_only
from tests.helpers.histograms import histogram_of
from tests.helpers.pack import made_documents, save_arrow

ORDERED = [name for name, known in ALGORITHMS.items() if isinstance(known, OrderAlgorithm)]


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


def write_csv(text: str | bytes, name: str = "counts.csv") -> Path:
    path = Path(name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def csv_of(counts: dict[int, int]) -> str:
    return "length,count\n" + "".join(f"{length},{count}\n" for length, count in counts.items())


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
    assert rows["bfd"]["rows"] == len(naive.best_fit_decreasing(segments, 40, 5))
    assert rows["bfd"]["speedup"] == len(segments) / rows["bfd"]["rows"]
    assert rows["bfd"]["packing_factor"] == sum(map(bool, lengths)) / rows["bfd"]["rows"]
    assert rows["bfd"]["documents_split"] == sum(length > 40 for length in lengths)
    assert rows["wrapped"]["documents_split"] > rows["bfd"]["documents_split"]
    assert rows["bfd"]["gap"] == rows["bfd"]["rows"] / content["lower_bound"] - 1
    assert content["lower_bound"] >= lower_bound(np.bincount(segments, minlength=41), 5)
    assert content["lower_bound"] <= min(row["rows"] for row in rows.values() if row["keeps_whole"])
    assert all(row["seconds"] >= 0 for row in rows.values())


@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
def test_long_documents_follow_the_policy_in_a_dataset_and_in_its_histogram(source, long):
    lengths = [len(tokens) for tokens in made_documents(300)]
    counts = write_csv(csv_of(Counter(lengths)))
    arguments = ("--max-len", 32, "--long", long, "--json")
    one, other = (json.loads(succeeded(name, *arguments)) for name in (source, counts))
    for content in (one, other):
        rows = [row | {"seconds": 0} for row in content["outcomes"] if row["algorithm"] in ("bfd", "optimal")]
        content["outcomes"] = sorted(rows, key=lambda row: row["algorithm"])
        del content["best"], content["failures"]
    assert one == other
    assert one["outcomes"][0]["tokens_packed"] == sum(length for _, _, length in naive.cut_documents(lengths, 32, long))


def test_order_algorithms_follow_the_long_document_policy(source):
    lengths = [len(tokens) for tokens in made_documents(300)]
    for long in ("truncate", "drop"):
        content = json.loads(succeeded(source, "--max-len", 32, "--long", long, "--json"))
        placed = [min(length, 32) if long == "truncate" else length * (length <= 32) for length in lengths]
        (wrapped,) = (row for row in content["outcomes"] if row["algorithm"] == "wrapped")
        assert wrapped["rows"] == len(naive.wrapped(placed, 32))


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


def test_one_algorithm_packs_a_histogram_and_aliases_are_resolved(source):
    content = json.loads(
        succeeded(write_csv(csv_of({10: 5, 30: 3})), "--max-len", 64, "--json", "--algorithm", "lpfhp")
    )
    assert [row["algorithm"] for row in content["outcomes"]] == ["bfd"]
    assert run(source, "--max-len", 64, "--algorithm", "magic").exit_code == 2


def test_what_is_about_one_algorithm_is_not_compared(source):
    for more, words in {
        ("--max-len", "32,64"): "at one length",
        ("--report", "page.html"): "by one algorithm",
        ("--align", 8): "not for all algorithms",
    }.items():
        assert words in refused(source, *more, code=2)


def test_order_algorithms_are_marked_as_needing_a_dataset(source):
    counts = write_csv(csv_of({10: 5, 30: 3}))
    text = succeeded(counts, "--max-len", 64)
    content = json.loads(succeeded(counts, "--max-len", 64, "--json"))
    assert [*content["failures"]][-2:] == ORDERED
    for name, error in content["failures"].items():
        assert error.startswith("needs a dataset")
        assert f"\n{name}: needs a dataset" in text
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert set(line.split()[1:]) == {"-"}
    error = refused(counts, "--max-len", 64, "--algorithm", "sequential")
    assert error.startswith("no algorithm could run; sequential: needs a dataset")


def test_slow_algorithms_are_left_out_of_long_rows_unless_one_is_named(source):
    slow = ["nnlshp", "nnlshp-published", "ennlshp"]
    counts = write_csv(csv_of({3: 4, 512: 1}))
    assert "left out" not in succeeded(counts, "--max-len", 512)
    text = succeeded(counts, "--max-len", 513)
    assert "left out, slow for rows this long: nnlshp, nnlshp-published, ennlshp (run" in text.replace("\n", " ")
    found = json.loads(succeeded(counts, "--max-len", 513, "--json"))
    assert found["left_out"] == slow
    assert not {row["algorithm"] for row in found["outcomes"]} & set(slow)
    named = json.loads(succeeded(counts, "--max-len", 513, "--algorithm", "nnlshp", "--json"))
    assert [row["algorithm"] for row in named["outcomes"]] == ["nnlshp"]
    assert named["left_out"] == []


def test_an_algorithm_that_refuses_says_why(source):
    counts = write_csv(csv_of(dict.fromkeys(range(1, 4097), 1)))
    error = refused(counts, "--max-len", 4096, "--algorithm", "nnlshp-published")
    assert error.startswith(
        "no algorithm could run; nnlshp-published: nnlshp-published lists every way to fill 4096 tokens"
    )


def fails_with(error: BaseException) -> Algorithm:
    def solve(histogram, max_segments=None, **limits):
        raise error

    return Algorithm(name="ffd", summary="Fails.", solve=solve)


def test_an_algorithm_that_runs_out_of_memory_does_not_end_the_run(source, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "ffd", fails_with(MemoryError("8 TiB")))
    assert "\nffd: out of memory (8 TiB)" in succeeded(source, "--max-len", 64)


def test_an_interrupt_ends_the_run_in_one_line(source, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "ffd", fails_with(KeyboardInterrupt()))
    assert refused(source, "--max-len", 64, code=130) == "interrupted"


def test_progress_names_every_algorithm(source):
    steps = []
    found = comparing.compare(
        source,
        options=PackOptions(max_len=64),
        algorithms=["bfd", "wrapped"],
        progress=lambda stage, done, total: steps.append((stage, done, total)),
    )
    assert [known.algorithm for known in found.outcomes] == ["wrapped", "bfd"]
    assert steps[-3:] == [("solve bfd", 0, 2), ("solve wrapped", 1, 2), ("solve", 2, 2)]


# ---- histograms in files ----


def test_a_histogram_is_read_in_any_order_and_with_any_line_ends(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_bytes(b'\xef\xbb\xbfLength, Count\r\n30,2\r\n\r\n 7 , 4\r\n"0",1\r\n')
    lengths, counts = read_length_counts(path)
    assert (lengths.tolist(), counts.tolist()) == ([0, 7, 30], [1, 4, 2])
    assert lengths.dtype == counts.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "counts.csv line 1 is empty; a histogram begins with the header 'length,count'"),
        ("5,3\n7,1\n", "counts.csv line 1 has '5,3'; a histogram begins with the header 'length,count'"),
        ("count,length\n5,3\n", "counts.csv line 1 has 'count,length'; a histogram begins"),
        ("length,count\n5,3\n-7,1\n", "counts.csv line 3: length '-7' is not a whole number from 0 to 2,147,483,647"),
        ("length,count\n5,-3\n", "counts.csv line 2: count '-3' is not a whole number from 0 to "),
        ("length,count\n5,3\n\n7.5,1\n", "counts.csv line 4: length '7.5' is not a whole number"),
        ("length,count\nfive,3\n", "counts.csv line 2: length 'five' is not a whole number"),
        ("length,count\n5,\n", "counts.csv line 2: count '' is not a whole number"),
        ("length,count\n2147483648,1\n", "counts.csv line 2: length '2147483648' is not a whole number from 0 to"),
        ("length,count\n5,99999999999999999999999\n", "counts.csv line 2: count '99999999999999999999999' is not"),
        ("length,count\n5,3\n6,1\n5,2\n", "counts.csv line 4: length 5 is in line 2 too"),
        ("length,count\n5\n", "counts.csv line 2 has 1 values, '5'; there must be a length and a count"),
        ("length,count\n5,3,1\n", "counts.csv line 2 has 3 values"),
        ("length,count\n", "counts.csv counts no document of 1 token or more (0 lengths)"),
        ("length,count\n0,4\n5,0\n", "counts.csv counts no document of 1 token or more (2 lengths)"),
        (
            "length,count\n2147483647,9007199254740992\n",
            "counts.csv counts 19,342,813,104,826,867,540,557,824 tokens; there may be 9,007,",
        ),
        (b"length,count\n\xff\xfe,1\n", "counts.csv is not a CSV text file"),
    ],
)
def test_an_invalid_histogram_is_reported_with_file_line_and_value(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    assert refused(write_csv(text), "--max-len", 64).startswith(words)


def test_missing_and_empty_histograms_are_reported_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("nowhere.csv", "--max-len", 64) == "nowhere.csv: No such file or directory"
    counts = write_csv(csv_of({70: 2, 90: 3, 200: 0}))
    assert refused(counts, "--max-len", 64, "--long", "error") == (
        "counts.csv has 5 documents longer than max_len 64 (up to 90); choose --long split, truncate or drop"
    )
    assert refused(counts, "--max-len", 64, "--long", "drop") == (
        "nothing to pack: of 5 documents in counts.csv, 0 are empty and 5 longer than max_len 64 (--long drop)"
    )
    Path("folder.csv").mkdir()
    save_arrow(Path("folder.csv/rows.arrow"), made_documents(20))
    assert "20 documents" in succeeded("folder.csv", "--max-len", 64, "--algorithm", "sequential")


def test_nothing_to_pack_and_invalid_sizes_are_refused(source):
    assert refused("nowhere.arrow", "--max-len", 64)
    assert "nothing to pack" in refused(save_arrow(Path("empty.arrow"), [[], []]), "--max-len", 64)
    too_long = run(source, "--max-len", 2**30)
    assert too_long.exit_code == 2
    assert "--max-len: 1073741824 is not a whole number from 1 to 16777216" in too_long.stderr
    with pytest.raises(PackerError, match="longer"):
        comparing.compare(source, options=PackOptions(max_len=4, long="error"))


# ---- published numbers (Krell et al., tables reproduced with the authors' code) ----


@pytest.mark.nightly
@jit_only
def test_wikipedia_with_three_segments_reproduces_published_figures(shared_data):
    counts = shared_data / "histograms" / "wikipedia_bert_512.csv"
    content = json.loads(succeeded(counts, "--max-len", 512, "--max-segments", 3, "--json"))
    assert (content["documents"], content["tokens"]) == (16_279_552, 4_164_796_173)
    rows = {row["algorithm"]: row for row in content["outcomes"]}
    assert rows["spfhp-published"]["rows"] == 9_094_695
    assert rows["spfhp-published"]["efficiency"] == pytest.approx(0.89441, abs=5e-6)
    assert rows["bfd"]["rows"] == 9_090_154
    assert rows["nnlshp-published"]["rows"] == pytest.approx(8_155_059, abs=5)
    assert rows["nnlshp-published"]["speedup"] == pytest.approx(1.99625, abs=5e-6)
    assert rows["optimal"]["rows"] <= 8_143_830
    assert content["lower_bound"] == 8_143_829
    assert lower_bound(_wikipedia(shared_data), 3) < content["lower_bound"]
    assert all(row["segments_per_row"]["max"] <= 3 for row in rows.values())


def _wikipedia(shared_data):
    lengths, counts = read_length_counts(shared_data / "histograms" / "wikipedia_bert_512.csv")
    return histogram_of(512, dict(zip(lengths.tolist(), counts.tolist(), strict=True)))


@jit_only
def test_seconds_leave_compiling_out(monkeypatch, tmp_path):
    monkeypatch.setattr(comparing, "QUICK", 0)  # the first run counts
    monkeypatch.setenv("PACKER_CACHE_DIR", str(tmp_path))
    before = compile_seconds()
    _, seconds = comparing._timed(lambda: _cumulate(np.arange(9)) or "done")
    assert seconds < 0.5 * (compile_seconds() - before)


@jit
def _cumulate(out):
    """A kernel that no other test compiles."""
    for i in range(1, len(out)):
        out[i] += out[i - 1]
