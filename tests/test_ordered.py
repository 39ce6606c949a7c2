"""Packing in source order: rows equal those of naive algorithms, and every token is accounted for."""

import json

import pytest
from click.testing import CliRunner

import packer
from packer.cli import cli
from tests.helpers import naive
from tests.helpers.pack import hashes, made_documents, save_arrow, segments_in
from tests.helpers.small import shrink

TWINS = {"sequential": naive.sequential, "wrapped": naive.wrapped}
KEPT = {
    "split": lambda length: length,
    "truncate": lambda length: min(length, 40),
    "drop": lambda length: length if length <= 40 else 0,
}


@pytest.mark.nightly(after=8)
@pytest.mark.parametrize("max_segments", [None, 2])
@pytest.mark.parametrize("long", KEPT)
@pytest.mark.parametrize("algorithm", TWINS)
def test_rows_are_in_source_order_and_verified(tmp_path, algorithm, long, max_segments):
    documents = made_documents(500, longest=90)
    source = save_arrow(tmp_path / "source.arrow", documents)
    out = tmp_path / "out"
    manifest = packer.pack(
        source, out, max_len=40, algorithm=algorithm, long=long, max_segments=max_segments, shard_size="8KB"
    )
    assert list(packer.verify(out, source)) == []
    rows = TWINS[algorithm]([KEPT[long](len(tokens)) for tokens in documents], 40, max_segments)
    dataset = packer.load(out)
    assert len(dataset) == len(rows) == manifest.rows
    assert len(manifest.shards) > 3
    for row, expected in zip(dataset, rows, strict=True):
        real = row["doc_ids"] >= 0
        columns = (row[name][real].tolist() for name in ("doc_ids", "doc_starts", "seq_lengths"))
        assert list(zip(*columns, strict=True)) == expected
    for document, start, tokens, labels in segments_in(dataset):
        assert tokens == documents[document][start : start + len(tokens)]
        assert labels == [-100, *tokens[1:]]
    totals = manifest.totals
    pieces = [piece for row in rows for piece in row]
    cut = {document for document, start, _ in pieces if start > 0}
    assert (totals.segments, totals.documents_split) == (len(pieces), len(cut))
    assert totals.tokens_packed == sum(length for _, _, length in pieces)
    assert totals.lower_bound <= manifest.rows


@pytest.mark.parametrize("algorithm", TWINS)
def test_the_seed_changes_nothing_but_its_own_line_of_the_manifest(tmp_path, algorithm):
    source = save_arrow(tmp_path / "source.arrow", made_documents(100))
    for seed in (1, 2):
        packer.pack(source, tmp_path / str(seed), max_len=64, algorithm=algorithm, seed=seed)
    one, other = hashes(tmp_path / "1"), hashes(tmp_path / "2")
    assert {name for name in one if one[name] != other[name]} <= {"manifest.json"}


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("options", [{}, {"max_segments": 3}, {"untrained": "drop"}], ids=str)
@pytest.mark.parametrize("algorithm", TWINS)
def test_bytes_do_not_depend_on_how_many_documents_are_read_together(tmp_path, monkeypatch, algorithm, options):
    source = save_arrow(tmp_path / "source.arrow", made_documents(400, longest=90))
    options = {"max_len": 40, "shard_size": "8KB", "algorithm": algorithm, **options}
    packer.pack(source, tmp_path / "whole", **options)
    for together in (2, 34):
        shrink(monkeypatch, documents_together=together, segments_arranged=7)
        packer.pack(source, tmp_path / f"by {together}", **options)
        assert hashes(tmp_path / f"by {together}") == hashes(tmp_path / "whole")


def test_the_summary_says_how_many_documents_wrapping_cuts(tmp_path):
    source = save_arrow(tmp_path / "source.arrow", [[1] * 30] * 10)
    command = ["pack", str(source), "--max-len", "40", "-o", str(tmp_path / "out"), "--algorithm", "wrapped"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith("  ")}
    assert lines["split"].split()[1] == "5"  # 120 and 240 tokens are whole rows and whole documents
    result = CliRunner().invoke(cli, [*command, "--json", "--overwrite"])
    assert json.loads(result.stdout)["totals"]["rows"] == 8
