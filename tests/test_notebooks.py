"""What notebooks and the prompt show of datasets and manifests."""

import inspect
import io
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer
from packer.algorithms import ALGORITHMS
from packer.options import PackOptions, RunOptions, options_of
from packer.progress import progress_bars
from tests.helpers.chat_templates import save_tokenizer
from tests.helpers.commands import succeeded
from tests.helpers.writing import write_lines

NAME = "<b>&name"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("notebooks") / "documents.parquet"
    lengths = np.random.default_rng([8]).integers(1, 60, 300)
    pq.write_table(pa.table({"input_ids": [np.arange(length, dtype=np.int32) for length in lengths]}), path)
    return path


@pytest.fixture(scope="module")
def dataset(source) -> packer.PackedDataset:
    packer.pack(source, source.with_name(NAME), max_len=64)
    return packer.load(source.with_name(NAME))


def shown(value: object) -> ElementTree.Element:
    """The HTML of an object, which must be well-formed."""
    return ElementTree.fromstring(value._repr_html_())


def test_a_packed_dataset_shows_its_facts(dataset) -> None:
    page = shown(dataset)
    facts = {row[0].text: row[1].text for row in page.iter("tr")}
    assert facts["rows"].startswith(f"{len(dataset)} of 64 tokens")
    assert facts["documents"].startswith("300 of 300")
    assert page[0].text == f"PackedDataset {NAME}"


def test_figures_print_what_the_command_prints_and_are_tables_in_notebooks(source, dataset) -> None:
    for data, options, words in (
        (source, {"max_len": 64}, ["--max-len", 64]),
        (dataset.path, {}, []),
        (source, {"max_len": [32, 64]}, ["--max-len", "32,64"]),
        (source, {"max_len": "32,64", "long": "drop"}, ["--max-len", "32,64", "--long", "drop"]),
    ):
        figures = packer.stats(data, **options)
        assert f"{figures}\n" == succeeded("stats", data, *words)
        assert json.loads(json.dumps(figures.to_dict())) == json.loads(succeeded("stats", data, *words, "--json"))
        assert len([*shown(figures).iter("tr")]) > 2
    compared = packer.stats(source, max_len=64, algorithm="all", max_segments=3)
    assert {line[0].text.strip("* ") for line in [*shown(compared).iter("tr")][1:]} == {*ALGORITHMS}
    assert "0 rows" not in str(compared)


def test_a_report_is_written_from_python(source, tmp_path) -> None:
    packer.stats(source, max_len=64, report=tmp_path / "page.html")
    made_by = (tmp_path / "page.html").read_text().split("<pre>")[1]
    assert made_by.startswith(f"packer {packer.__version__}")
    with pytest.raises(packer.PackerError, match=r"^report .*name a file that ends with \.html"):
        packer.stats(source, report=tmp_path / "page.png")


def test_rows_print_what_show_prints_and_are_tables_in_notebooks(dataset) -> None:
    for options, words in (({}, []), ({"row": -1}, [-1]), ({"document": 7}, ["--document", 7])):
        contents = packer.show(dataset.path, **options)
        assert f"{contents}\n" == succeeded("show", dataset.path, *words)
        assert json.loads(json.dumps(contents.to_dict())) == json.loads(
            succeeded("show", dataset.path, *words, "--json")
        )
        assert shown(contents)[0].text == (
            None if "document" in options else f"row {options.get('row', 0) % len(dataset)}"
        )
    full = packer.show(dataset.path, full=True)
    assert f"{full}\n" == succeeded("show", dataset.path, "--full")
    assert full._repr_html_() is None


def test_what_was_written_has_its_path_for_the_next_call(tmp_path) -> None:
    pytest.importorskip("transformers")
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    source = write_lines(tmp_path / "texts.jsonl", [{"text": "the quick fox"}] * 20)
    tokenized = packer.tokenize(source, tokenizer=tokenizer)
    packed = packer.pack(tokenized.path, max_len=32)
    again = packer.pack(source, tmp_path / "again", max_len=32, tokenizer=tokenizer)
    assert packed.shards == again.shards
    assert packed == packer.load(packed.path).manifest  # which equal packs anywhere have
    assert packer.export(packed.path, to="parquet").path.is_dir()
    for record in (tokenized, packed):
        assert str(record.path) in repr(record)
        assert len(repr(record)) < 150 + len(str(record.path))
        assert str(tmp_path) not in json.dumps(record.to_dict())


@pytest.mark.parametrize("function", ["pack", "stats", "tokenize"])
def test_named_parameters_have_the_defaults_of_the_options(function) -> None:
    parameters = inspect.signature(getattr(packer, function)).parameters
    declared = options_of(PackOptions) | options_of(RunOptions)
    named = {name: parameter for name, parameter in parameters.items() if name in declared and name != "output"}
    assert named.keys() >= {"tokenizer", "text_column", "train_on", "chat_template"}
    for name, parameter in named.items():
        if name not in ("max_len", "tokenizer"):
            assert parameter.default == declared[name].default
    described = inspect.getdoc(getattr(packer, function))
    assert all(f"\n    {name}: " in described for name in parameters)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("place", ["terminal", "notebook", "log"])
def test_bars_are_drawn_where_somebody_looks(source, monkeypatch, place) -> None:
    stream = Terminal() if place == "terminal" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("packer.progress.DELAY", 0)
    if place == "notebook":
        shell = SimpleNamespace(config={"IPKernelApp": {}})
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for quiet in (False, lambda stage, done, total: None):
        packer.stats(source, max_len=64, progress=quiet)
        assert stream.getvalue() == ""
    packer.stats(source, max_len=64)
    assert ("lengths" in stream.getvalue() or "decode" in stream.getvalue()) == (place != "log")


@pytest.mark.parametrize("place", [Terminal, io.StringIO])
def test_a_stage_that_reports_nothing_shows_that_it_goes_on(monkeypatch, place) -> None:
    stream, pauses = place(), {"INTERVAL": 0, "DELAY": 0, "TICK": 0.01}
    monkeypatch.setattr(sys, "stderr", stream)
    for name, pause in pauses.items():
        monkeypatch.setattr(f"packer.progress.{name}", pause)
    with progress_bars() as progress:
        progress("plan", 0, 1)
        deadline = time.monotonic() + 60
        while stream.getvalue().count("plan") < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    ended = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == ended


def test_a_manifest_shows_its_facts(dataset) -> None:
    facts = {row[0].text: row[1].text for row in shown(dataset.manifest).iter("tr")}
    assert facts["rows"].startswith(f"{len(dataset)} of 64 tokens")


def test_reprs_are_one_short_line(dataset) -> None:
    for value in (dataset, dataset.manifest):
        text = repr(value)
        assert text.startswith(f"{type(value).__name__}(")
        assert len(text) < 150 + len(str(dataset.path))
        assert "\n" not in text
        assert "64" in text
