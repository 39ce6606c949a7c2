"""The report in HTML: true to the figures, safe, self-contained, the same bytes for the same input."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.options import PackOptions
from packer.pipeline.collect_figures import SAMPLED_SEGMENTS, dataset_figures, packed_figures
from packer.report.page import SECTIONS, render_page
from tests.helpers.commands import refused, run, succeeded

PLOTS = ["rows", "lengths"]
MARKUP = "<script>alert(1)</script>&\"'"


def without_command(path: Path) -> str:
    """A page without its last lines, which differ with the command that made it."""
    return re.sub(r"<pre>.*?</pre>", "", path.read_text(), flags=re.DOTALL)


def write_documents(path: Path, lengths: Any, *, seed: int = 3) -> Path:
    """A Parquet file of documents of these lengths, of which the second half of each is trained."""
    draw = np.random.default_rng([seed])
    tokens = [draw.integers(0, 1000, length).astype(np.int32) for length in lengths]
    labels = [np.where(np.arange(len(each)) < len(each) // 2, -100, each).astype(np.int32) for each in tokens]
    pq.write_table(pa.table({"input_ids": tokens, "labels": labels, "url": ["https://secret"] * len(tokens)}), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def source(folder) -> Path:
    lengths = np.random.default_rng([5]).geometric(0.02, 500)
    return write_documents(folder / "documents.parquet", [0, 300, *lengths])


@pytest.fixture(scope="module")
def packed(folder, source) -> Path:
    succeeded("pack", source, "--max-len", 128, "--keep", "url", "-o", folder / "packed")
    return folder / "packed"


class Page(HTMLParser):
    """A page, read: its elements as (tag, attributes), and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def ids(self, tag: str) -> list[str]:
        return [at["id"] for each, at in self.elements if each == tag and at.get("id")]


# What a page holds


def test_a_packed_dataset_and_a_dataset_have_all_sections(source, packed, tmp_path) -> None:
    for dataset in (source, packed):
        succeeded("stats", dataset, "--max-len", 128, "--report", tmp_path / "report.html")
        page = Page((tmp_path / "report.html").read_text())
        assert page.ids("section") == list(SECTIONS)
        drawn = [at["data-plot"] for tag, at in page.elements if tag == "svg" and "data-plot" in at]
        assert drawn == PLOTS


@pytest.mark.parametrize("is_packed", [True, False])
def test_numbers_on_the_page_are_those_of_stats_json(source, packed, tmp_path, is_packed) -> None:
    dataset = packed if is_packed else source
    content = json.loads(succeeded("stats", dataset, "--max-len", 128, "--report", tmp_path / "report.html", "--json"))
    page = Page((tmp_path / "report.html").read_text())
    epoch, tokens = content["epoch"], content["tokens"]
    before, after = (-(-epoch[rows] // 8) for rows in ("rows", "packed_rows"))
    for words in (
        f"Rows of 128 tokens {epoch['rows']:,} \u2192 {content['rows']:,} One document a row leaves ",
        f"Tokens {tokens:,} None is lost.",
        f"Steps of 8 rows: {before:,} \u2192 {after:,}.",
    ):
        assert words in page.words()
    assert ("The fewest possible." in page.words()) == (content["rows"] == content["lower_bound"])


def test_a_page_is_about_rows_of_one_length(source, tmp_path) -> None:
    refused("stats", source, "--max-len", "64,128", "--report", tmp_path / "report.html", words=("one length",), code=2)
    assert not (tmp_path / "report.html").exists()


def test_a_page_opens_with_what_packing_saves_and_ends_with_its_command(source, packed, tmp_path) -> None:
    said = json.loads(succeeded("stats", packed, "--report", tmp_path / "report.html", "--batch-size", 32, "--json"))
    text = (tmp_path / "report.html").read_text()
    times = (1 - said["padding"]["packed"]) / (1 - said["padding"]["batch_longest"]["8"])
    opening = re.search(r'<p class="lead">(.*?)</p>', text)[1]
    mean = round(said["tokens"] / said["documents"])
    assert opening.startswith(
        f"{said['documents']:,} documents of {mean} tokens on average, packed into {said['rows']:,} rows of 128: "
    )
    assert float(re.search(r"([\d.]+) times fewer tokens", opening)[1]) == pytest.approx(times, rel=0.01)
    made_by = re.search(r"<pre>(.*?)</pre>", text, re.DOTALL)[1].splitlines()
    assert made_by[0] == "packer stats packed --report report.html --batch-size 32 --json"
    assert re.fullmatch(rf"packer {re.escape(packer.__version__)}, \d{{4}}-\d\d-\d\d", made_by[1])


def test_rows_are_random_ones_and_none_stands_twice(tmp_path) -> None:
    succeeded("pack", write_documents(tmp_path / "rows.parquet", [100] * 99), "--max-len", 100, "-o", tmp_path / "out")
    shown = [row.row for row in packed_figures(tmp_path / "out", for_report=True).shown_rows]
    assert shown == sorted({*shown})
    assert len(shown) == 20
    assert shown[0] + 99 - shown[-1] + 20 > 10
    assert shown[10] - shown[0] > 10  # not the first ones


def test_a_page_says_what_was_lost_and_why(tmp_path) -> None:
    source = write_documents(tmp_path / "lost.parquet", [0, 300, 400, *[50] * 20])
    page = tmp_path / "page.html"
    succeeded("pack", source, "--max-len", 128, "--long", "truncate", "-o", tmp_path / "cut")
    succeeded("stats", tmp_path / "cut", "--report", page)
    words = Page(page.read_text()).words()
    assert "444 tokens of 2 documents truncated. 1 document left out: empty." in words
    succeeded("stats", source, "--max-len", 128, "--long", "drop", "--report", page)
    assert "1 document left out: empty. 700 tokens of 2 documents left out: too long." in Page(page.read_text()).words()


@pytest.mark.nightly
def test_a_page_of_trees_says_what_sharing_saves(tmp_path, shared_data) -> None:
    """Kernels of trees are compiled for it alone."""
    turns = [{"role": role, "content": "one two three"} for role in ("user", "assistant") * 3]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 3)
    options = ("--tokenizer", shared_data / "tokenizers/qwen3", "--train-on", "each-answer", "--share-prefixes")
    source = ("stats", tmp_path / "chats.jsonl", "--max-len", 256, *options)
    said = json.loads(succeeded(*source, "--json", "--report", tmp_path / "planned.html"))
    saved = said["shared_beginnings"]["saved_tokens"]
    assert saved > 0
    words = (
        f"Tokens {said['tokens'] + saved:,} \u2192 {said['tokens']:,} Beginnings that documents share are stored once."
    )
    succeeded("pack", *source[1:], "-o", tmp_path / "out")
    succeeded("stats", tmp_path / "out", "--report", tmp_path / "packed.html")
    for page in ("planned.html", "packed.html"):
        assert words in Page((tmp_path / page).read_text()).words()


@pytest.mark.parametrize(
    ("lengths", "compared"),
    [
        ([40] * 9, "9 documents of 40 tokens, which"),
        ([50], "more tokens to compute than"),
        ([128] * 9, "about as many"),
    ],
)
def test_a_page_claims_no_savings_where_there_are_none(tmp_path, lengths, compared) -> None:
    source = write_documents(tmp_path / "few.parquet", lengths)
    succeeded("stats", source, "--max-len", 128, "--report", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert compared in text
    assert "fewer tokens to compute" not in text


# Safety


def test_nothing_is_loaded_and_no_attribute_runs_code(packed) -> None:
    page = Page(render_page(packed_figures(packed, for_report=True)))
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "image", "use", "foreignobject"}
        assert not {"src", "href", "xlink:href", "style", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "://" not in "".join(page.texts).replace("http://www.w3.org/2000/svg", "")


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_nothing_else(packed) -> None:
    text = render_page(packed_figures(packed, for_report=True))
    policy = next(at["content"] for tag, at in Page(text).elements if "http-equiv" in at)
    inline = {
        f"{kind}-src": re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        for kind, tag in (("style", "style"), ("script", "script"))
    }
    hashes = {kind: f"'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'" for kind, code in inline.items()}
    assert dict(rule.split(" ", 1) for rule in policy.split("; ")) == {
        "default-src": "'none'",
        **hashes,
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_names_are_escaped_wherever_they_stand(folder, tmp_path) -> None:
    """A file name cannot hold a slash."""
    name = MARKUP.replace("/", "")
    source = write_documents(tmp_path / f"{name}.parquet", [9, 30, 70] * 9)
    out = tmp_path / f"{name}-packed"
    succeeded("pack", source, "--max-len", 64, "-o", out)
    succeeded("stats", out, "--report", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;script&gt;&amp;" in text


def test_text_is_shown_where_a_tokenizer_is_given_and_kept_columns_are_not(tmp_path, tokenizer) -> None:
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text(
        "".join(json.dumps({"text": f"zebra crossing {MARKUP} {n}", "url": "x.secret"}) + "\n" for n in range(9))
    )
    by = ("--tokenizer", tokenizer)
    options = ("pack", corpus, "--max-len", 64, *by, "--keep", "url", "-o", tmp_path / "out")
    succeeded(*options)
    succeeded("stats", tmp_path / "out", "--report", tmp_path / "plain.html")
    succeeded("stats", tmp_path / "out", "--report", tmp_path / "text.html", *by)
    plain, text = ((tmp_path / name).read_text() for name in ("plain.html", "text.html"))
    assert "zebra" not in plain
    assert "secret" not in plain + text
    assert "zebra crossing &lt;script&gt;" in text  # in the table
    assert "zebra crossing \\u003cscript>" in text  # in the data of the script
    assert "<script>alert" not in text


# Size and bytes


def test_the_same_input_gives_the_same_bytes_and_no_others(source, packed, tmp_path) -> None:
    pages = []
    for number in range(2):
        copy = tmp_path / str(number) / source.name
        copy.parent.mkdir()
        copy.write_bytes(source.read_bytes())
        succeeded("stats", copy, "--max-len", 128, "--report", tmp_path / f"{number}.html")
        assert str(tmp_path) not in (tmp_path / f"{number}.html").read_text()
        pages.append(without_command(tmp_path / f"{number}.html"))
    assert pages[0] == pages[1]


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize(("lengths", "max_len"), [([2] * 60_000, 2**16), ([40] * 30_000, 4096), ([200_000], 4096)])
def test_a_page_stays_below_500_kb(tmp_path, lengths, max_len) -> None:
    path = write_documents(tmp_path / "many.parquet", lengths)
    succeeded("pack", path, "--max-len", max_len, "-o", tmp_path / "out")
    succeeded("stats", tmp_path / "out", "--report", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 500_000
    rows = packed_figures(tmp_path / "out", for_report=True).shown_rows
    assert sum(len(row.lengths) for row in rows) <= SAMPLED_SEGMENTS
    assert all(sum(row.extents) + row.rest <= max_len for row in rows)


# Figures


def test_planned_rows_are_those_that_pack_writes(source, packed) -> None:
    planned, written = (
        dataset_figures(source, options=PackOptions(max_len=128), for_report=True),
        packed_figures(packed, for_report=True),
    )
    for name in ("row", "lengths", "extents", "documents", "starts"):
        assert [getattr(row, name) for row in planned.shown_rows] == [getattr(row, name) for row in written.shown_rows]
    assert planned.row_figures.attention == written.row_figures.attention
    np.testing.assert_array_equal(planned.histogram, written.histogram)
    np.testing.assert_array_equal(written.document_lengths[0], np.flatnonzero(planned.histogram))


# Files


def test_an_error_of_a_report_names_the_length_that_was_asked_for(tmp_path) -> None:
    source = write_documents(tmp_path / "empty.parquet", [0, 0])
    answer = run("stats", source, "--max-len", 512, "--report", tmp_path / "page.html").stderr
    assert "longer than max_len 512" in answer


def test_what_cannot_be_written_is_refused_before_the_work(source, packed, tmp_path) -> None:
    assert "--report" in run("stats", packed, "--report", tmp_path).stderr
    assert "does not exist; choose another" in run("stats", packed, "--report", tmp_path / "no" / "page.html").stderr
    assert "name a file that ends with .html" in run("stats", packed, "--report", source).stderr
    assert list(tmp_path.iterdir()) == []
