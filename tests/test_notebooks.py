"""What notebooks and the prompt show of datasets and manifests."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packer

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


def test_showing_a_dataset_imports_nothing_beyond_loading(dataset) -> None:
    script = "import sys, packer; packer.load(sys.argv[1])._repr_html_(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, dataset.path], capture_output=True, text=True, check=True)
    parts = {"batching.collating", "cache.shard_cache", "sampling.batch_sampler"}
    others = {"numba", "torch", "datasets", "jinja2", "click", "tqdm", *(f"packer.loader.{part}" for part in parts)}
    assert not others & set(done.stdout.split())
