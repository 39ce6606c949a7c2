"""Mixtures in order: sources are interleaved, and what would take too much memory is refused."""

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from packer.errors import PackerError
from packer.plan import mixture_shares
from tests.test_mixtures import save

FILES, IN_FILE = 64, 1 << 14


@pytest.mark.parametrize("algorithm", ["sequential", "wrapped"])
def test_order_algorithms_interleave_the_sources(tmp_path, algorithm):
    sources = [(save(tmp_path, 0, 600), 0.7), (save(tmp_path, 1, 600), 0.3)]
    packer.pack(sources, tmp_path / "out", max_len=400, algorithm=algorithm)
    for row in list(packer.load(tmp_path / "out"))[:-1]:
        real = row["doc_ids"] >= 0
        tokens = np.bincount(row["source_ids"][real], row["seq_lengths"][real], minlength=2)
        assert tokens[0] / tokens.sum() == pytest.approx(0.7, abs=0.2)


def test_too_many_documents_are_rejected_where_memory_would_be_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(mixture_shares, "_DOCUMENT_BYTES", 2**40)
    sources = [(save(tmp_path, 0, 50), 0.5), (save(tmp_path, 1, 20), 2)]
    options = {"max_len": 64, "mix_unit": "epochs"}
    with pytest.raises(PackerError, match=r"it repeats source.arrow \(2\) 2 times: more than .* smaller weights"):
        packer.pack(sources, tmp_path / "out", algorithm="sequential", **options)
    packer.pack(sources, tmp_path / "other", **options)
    sources = [(path, 1e18) for path, _ in sources]
    with pytest.raises(PackerError, match=r"documents, as it repeats .* more than the limit of .*; choose smaller wei"):
        packer.pack(sources, tmp_path / "none", **options)


def test_a_mixture_that_cannot_fit_is_rejected_at_once(tmp_path):
    """Reading all of its documents would take years."""
    sources = [save(tmp_path, 0, 50), save(tmp_path, 1, 20)]
    with pytest.raises(PackerError, match="are free: free some space"):
        packer.pack([(source, 1) for source in sources], tmp_path / "out", max_len=64, mix_tokens=10**16)
    arguments = [argument for source in sources for argument in ("--source", f"{source}:1")]
    done = CliRunner().invoke(cli, ["stats", *arguments, "--max-len", "64", "--mix-tokens", str(10**16)])
    assert (done.exit_code, "memory can put in order" in done.output) == (1, True), done.output


def test_an_overlong_document_is_named_by_its_number_in_its_source(tmp_path):
    one, folder = save(tmp_path, 0, 5), tmp_path / "folder"
    folder.mkdir()
    for number, longest in enumerate((8, 40)):
        table = pa.table({"input_ids": [[number] * 3] * 30 + [[number] * longest]})
        with pa.ipc.new_stream(str(folder / f"{number}.arrow"), table.schema) as stream:
            stream.write_table(table)
    with pytest.raises(PackerError, match="document 61 has 40 tokens and max_len is 39"):
        packer.pack([(one, 1), (folder, 1)], tmp_path / "out", max_len=39, long="error")
