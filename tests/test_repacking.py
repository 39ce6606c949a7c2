"""A packed dataset as a source: its documents, in rows of another length."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import packer
from packer.errors import SourceError
from packer.sources import decoded_pieces, segment_index
from tests.packings import packings

KEPT = {"keep": ["url"], "keep_tokens": ["reward"]}


def made_columns(count=400, seed=0, longest=60) -> dict[str, list]:
    """Documents of distinct tokens, some of them long and some empty, with labels and two more columns."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest, count)
    lengths[::37] = 10 * longest
    lengths[::50] = 0
    ends = np.cumsum(lengths)
    tokens = [list(range(end - length, end)) for length, end in zip(lengths.tolist(), ends.tolist(), strict=True)]
    return {
        "input_ids": tokens,
        "labels": [[token if random.random() < 0.6 else -100 for token in ids] for ids in tokens],
        "url": [None if number % 9 == 0 else f"page-{number}" for number in range(count)],
        "reward": [[token / 4 for token in ids] for ids in tokens],
    }


TYPES = {"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32()), "reward": pa.list_(pa.float32())}


def save(path: Path, columns: dict[str, list]) -> Path:
    table = pa.table({name: pa.array(values, TYPES.get(name)) for name, values in columns.items()})
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table, max_chunksize=50)
    return path


def hashes(manifest: packer.Manifest) -> list[str]:
    return [shard.xxh3_128 for shard in manifest.shards]


def pack(source: Path, out: Path, **options) -> packer.Manifest:
    return packer.pack(source, out, **{"sync": False, "workers": 2, "shard_size": 40_000, **options})


def documents_of(folder: Path) -> dict[int, tuple[list[int], list[int], dict]]:
    """The slow twin: put documents together row by row, token by token, from what `packer.load` returns."""
    found: dict[int, dict[int, tuple]] = {}
    rows = packer.load(folder)
    for row in (rows[number] for number in range(len(rows))):
        sizes, place = row.get("seq_tokens", row["seq_lengths"]), 0
        for segment, document in enumerate(row["doc_ids"].tolist()):
            if document >= 0:
                tokens = found.setdefault(document, {})
                start = int(row["doc_starts"][segment])
                for at in range(int(sizes[segment])):
                    values = [row[name][place + at].item() for name in ("input_ids", "labels", "reward") if name in row]
                    before = tokens.get(start + at)
                    if before is None or before[1] == -100:  # a repeated token has its label where it is trained
                        tokens[start + at] = values
            place += int(row["seq_lengths"][segment])
    return {document: [tokens[at] for at in sorted(tokens)] for document, tokens in found.items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("repacking") / "documents.arrow", made_columns())


@pytest.fixture(scope="module")
def packed(source) -> Path:
    """The source in rows of 128 tokens; its long documents are split."""
    out = source.with_name("packed")
    pack(source, out, max_len=128, overlap=5, align=4, **KEPT)
    return out


@pytest.fixture
def few_bytes(monkeypatch) -> None:
    """Cut sources into many pieces, and sort segments in many runs."""
    monkeypatch.setattr(decoded_pieces, "_PIECE", 5_000)
    monkeypatch.setattr(segment_index, "_RUN", 3_000)


# the same rows as from the source


@pytest.mark.parametrize("options", [{"seed": 3}, {"algorithm": "wrapped"}, {"overlap": 9}, {"align": 8, "seed": 1}])
@pytest.mark.parametrize("max_len", [64, 1024])
def test_rows_of_another_length_are_those_of_the_source(source, packed, tmp_path, few_bytes, options, max_len):
    expected = pack(source, tmp_path / "expected", max_len=max_len, **KEPT, **options)
    found = pack(packed, tmp_path / "found", max_len=max_len, **KEPT, **options)
    assert hashes(found) == hashes(expected)
    assert len(expected.shards) > 1
    assert found.totals == expected.totals
    assert found.source.lengths_xxh3_128 == expected.source.lengths_xxh3_128
    assert list(packer.verify(tmp_path / "found", packed)) == []


def test_rows_that_were_packed_again_and_back_are_the_first_rows(source, tmp_path):
    first = pack(source, tmp_path / "first", max_len=96, overlap=1)
    pack(tmp_path / "first", tmp_path / "there", max_len=700)
    back = pack(tmp_path / "there", tmp_path / "back", max_len=96, overlap=1)
    assert hashes(back) == hashes(first)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packings(mixtures=False, pairs=False), st.integers(1, 8), st.data())
def test_any_packed_documents_are_those_of_the_slow_twin(tmp_path_factory, packing, times, data):
    """Documents joined from rows are those that the rows spell; rows of them are those of the same documents saved."""
    folder = tmp_path_factory.mktemp("any")
    manifest = packing.pack(packing.write(folder), folder / "packed")
    assume(manifest is not None)
    kept = [name for name in packing.options.get("keep", ()) if name == "source"]
    options = {"max_len": packing.options["align"] * times if "align" in packing.options else times, "keep": kept}
    options |= {"seed": data.draw(st.integers(0, 2)), "allow_untrained": True, "shard_size": 100}
    twin = documents_of(folder / "packed")
    try:
        found = pack(folder / "packed", folder / "found", **options)
    except SourceError as error:
        assert packing.options["untrained"] == "drop"
        assert "left out by --untrained drop" in str(error)
        return
    columns = {"input_ids": [], "labels": []}
    for document in range(manifest.totals.documents):
        values = twin.get(document, [])
        for number, name in enumerate(columns):
            columns[name].append([value[number] for value in values])
    if kept:
        table = pa.concat_tables([pa.table({"source": found_kept(folder / "packed", manifest.totals.documents)})])
        columns["source"] = table["source"].to_pylist()
    expected = pack(save(folder / "twin.arrow", columns), folder / "expected", **options)
    assert hashes(found) == hashes(expected)
    assert list(packer.verify(folder / "found", folder / "packed")) == []


def found_kept(folder: Path, documents: int) -> list:
    """The value of column "source" of each document, from the rows."""
    values = [None] * documents
    for shard in sorted(folder.glob("*.arrow")):
        table = pa.ipc.open_stream(shard.read_bytes()).read_all()
        for ids, row in zip(table["doc_ids"].to_pylist(), table["source"].to_pylist(), strict=True):
            for document, value in zip(ids, row, strict=True):
                if document >= 0:
                    values[document] = value
    return values
