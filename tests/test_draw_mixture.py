"""Documents of a mixture by number: the origin of each, found without holding anything per document."""

import pickle
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.cli import cli
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.read_documents import open_sources, read_documents
from packer.pipeline.segments import segment_reader
from packer.plan import hash_sample, mixture_shares
from packer.plan.hash_sample import HashSample
from packer.plan.mixture_shares import Take
from packer.plan.permute import key_of
from packer.random_purposes import MIXTURE
from packer.sources import source_order
from packer.sources import survey as survey_module
from packer.sources.mixtures.draw_mixture import draw_mixture
from packer.sources.mixtures.origins import Origins
from packer.sources.source_order import MixtureOrder
from tests import naive
from tests.test_mixtures import documents_of, save


class Lists:
    """The part of a source that `Origins` uses."""

    def __init__(self, count: int, indices: np.ndarray | None = None) -> None:
        self.rows = [count]
        self.indices = indices


def times_of(takes) -> list[list[int]]:
    return [take.times(0, take.sample.population).tolist() for take in takes]


def side_by_side(times) -> list[tuple[int, int, int]]:
    """Return (source, document, copy) of what is taken, with the copies of a document together."""
    return [
        (source, document, copy)
        for source, each in enumerate(times)
        for document, count in enumerate(each)
        for copy in range(count)
    ]


# ---- numbers ----

SOURCES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.floats(0, 0.9)), min_size=1, max_size=4)


@settings(deadline=None)
@given(SOURCES, st.integers(0, 2**63 - 1), st.booleans(), st.data())
def test_every_number_is_one_document(sources, seed, reordered, data):
    takes = [
        Take(copies=copies, sample=HashSample.of(count, key_of(seed, MIXTURE, number), np.uint64(int(share * 2**64))))
        for number, (count, copies, share) in enumerate(sources)
    ]
    numbered = naive.numbered(times_of(takes))
    order = np.random.default_rng(seed).permutation(len(numbered)).astype(np.uint8) if reordered else None
    if order is not None:
        numbered = [numbered[number] for number in order]
    parts = [
        Lists(count, np.arange(count, dtype=np.uint64)[::-1] if number % 2 else None)
        for number, (count, *_) in enumerate(sources)
    ]
    origins = Origins.of_takes(tuple(parts), tuple("abcd"[: len(parts)]), takes, order)
    wanted = data.draw(st.lists(st.integers(0, len(numbered) - 1), max_size=30)) if numbered else []
    for documents in (list(range(len(numbered))), wanted):
        found = origins.of(np.array(documents, np.int64))
        assert list(zip(*(each.tolist() for each in found), strict=True)) == [numbered[number] for number in documents]
        lists, firsts = [], np.cumsum([0, *(count for count, *_ in sources)])
        for number in documents:
            source, document, _ = numbered[number]
            lists.append(firsts[source] + (sources[source][0] - 1 - document if source % 2 else document))
        assert origins[np.array(documents, np.int64)].tolist() == lists


def numbers(order, segments):
    """Return the documents of segments (source_ids, doc_ids, copy) by number."""
    columns = np.array(segments).T
    return order.numbers(dict(zip(("source_ids", "doc_ids", "copy"), columns, strict=True)))


def test_documents_are_numbered_in_the_order_of_the_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(source_order, "_TOGETHER", 20)
    sources = [save(tmp_path, 0, 50), save(tmp_path, 1, 20), save(tmp_path, 2, 2000)]
    options = PackOptions(max_len=32, weights=(1.5, 2.0, 0.25), mix_unit="epochs")
    drawn = draw_mixture(open_sources(sources, options))
    taken, every = MixtureOrder(drawn), side_by_side(times_of(drawn.takes))
    assert numbers(taken, every).tolist() == list(range(len(every)))
    shuffled = np.random.default_rng(0).permutation(len(every))
    assert numbers(taken, np.array(every)[shuffled]).tolist() == shuffled.tolist()
    left_out = int(np.flatnonzero(~drawn.takes[0].sample.contains(0, 50))[0])
    others = [(0, left_out, 1), (0, 0, 2), (1, 0, 2), (1, 20, 0), (3, 0, 0), (0, -1, 0), (0, 0, -1), (-1, 0, 0)]
    assert numbers(taken, others).tolist() == [len(every)] * len(others)
    for number, (source, document, copy) in enumerate(every):
        where = f"document {document} (source.arrow row {document}) of source.arrow ({source + 1}), copy {copy}"
        assert taken.describe(number) == where
    lengths = [[len(tokens) for tokens in documents_of(source, count)] for source, count in enumerate((50, 20, 2000))]
    done = 0
    for table in taken.tables():
        assert table.first_document == done
        assert len(table.lengths) <= 20
        done += len(table.lengths)
        here = [lengths[source][document] for source, document, _ in every[table.first_document : done]]
        assert table.lengths.tolist() == here
        assert [len(table.input_ids.list_at(int(number))) for number in table.lists] == here
    assert done == len(every)


def test_the_identity_covers_the_documents_taken(tmp_path, monkeypatch):
    sources = [save(tmp_path, 0, 500), save(tmp_path, 1, 60)]
    options = {"weights": (0.5, 2.25), "mix_unit": "epochs"}
    found = []
    for together, seed in ((1 << 18, 1), (7, 1), (7, 2)):
        monkeypatch.setattr(survey_module, "_TOGETHER", together)
        found.append(draw_mixture(open_sources(sources, PackOptions(max_len=64, seed=seed, **options))).identity)
    assert found[0] == found[1]
    assert found[1].lengths_xxh3_128 != found[2].lengths_xxh3_128
    drawn = draw_mixture(open_sources(sources, PackOptions(max_len=64, seed=1, **options)))
    lengths = drawn.lengths()
    identity = read_documents(drawn.mixture, interleaved=True).identity
    assert identity == found[0]
    assert (identity.documents, identity.tokens) == (len(lengths), lengths.sum())
    for source, (part, count) in enumerate(zip(identity.mixture, (500, 60), strict=True)):
        times = np.array(times_of(drawn.takes)[source])
        tokens = times @ [len(document) for document in documents_of(source, count)]
        taken = {"copies": times.min(), "documents": times.sum(), "tokens": tokens, "tokens_kept": tokens}
        assert part.taken.to_dict() == taken


# ---- memory ----

FILES, IN_FILE = 64, 1 << 14
"""Files, and documents per file: a million documents in all."""


@pytest.fixture(scope="module")
def million(tmp_path_factory):
    folder = tmp_path_factory.mktemp("million")
    lengths = np.random.default_rng(0).integers(0, 4, IN_FILE)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    batch = pa.record_batch({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(np.ones(offsets[-1], np.int32)))})
    for number in range(FILES):
        with pa.ipc.new_stream(str(folder / f"{number:02d}.arrow"), batch.schema) as stream:
            stream.write_batch(batch)
    other = folder.with_name("other")
    other.mkdir()
    with pa.ipc.new_stream(str(other / "other.arrow"), batch.schema) as stream:
        stream.write_batch(batch)
    return folder, other


@pytest.mark.parametrize("weights", [(0.4, 0.5), (1.3, 60.5)], ids=["samples", "copies"])
def test_a_million_documents_are_not_held(million, monkeypatch, weights):
    """All that is allocated on the way stays below half a byte for each document: their lengths alone take four."""
    for module, name in (
        (survey_module, "_TOGETHER"),
        (hash_sample, "_CHUNK"),
        (segment_reader, "_READ_TOGETHER"),
    ):
        monkeypatch.setattr(module, name, 1 << 12)
    options = PackOptions(max_len=16, weights=weights, mix_unit="epochs")
    opened = open_sources(million, options)

    def read():
        documents = read_documents(opened)
        mapped = segment_reader.MappedDocuments(documents=documents)
        reader, count = segment_reader.SourceReader(mapped=mapped, options=options), documents.identity.documents
        ranges = np.array([[0, 3000], [count // 2, count // 2 + 3000], [count - 3000, count]])
        scattered = np.random.default_rng(0).integers(0, count, 3000)
        return documents, reader.segments(ranges), segment_reader.lists_of(mapped.table, scattered)

    read()  # compile and import
    tracemalloc.start()
    try:
        documents, segments, lists = read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert segments.documents == 9000
    assert lists.max() < (FILES + 1) * IN_FILE
    assert documents.lengths is None
    assert peak < FILES * IN_FILE / 2
    assert len(pickle.dumps(documents.origins.takes)) < FILES * IN_FILE / 50


def test_scattered_documents_are_located_correctly(million):
    """Rows of the pool take documents from anywhere; each block is hashed once for all of its documents."""
    options = PackOptions(max_len=16, weights=(0.4, 0.5), mix_unit="epochs")
    origins = read_documents(open_sources(million, options)).origins
    count = int(origins.firsts[-1])
    sources, ids, copies = origins.of(np.arange(count))
    scattered = np.random.default_rng(1).permutation(count)
    found = origins.of(scattered)
    for all_of_them, looked_up in zip((sources, ids, copies), found, strict=True):
        assert (all_of_them[scattered] == looked_up).all()
    assert max(Counter(ids[sources == 0].tolist()).values()) == 1


@pytest.mark.parametrize("algorithm", ["auto", "bfd", "sequential", "wrapped"])
def test_only_order_algorithms_hold_the_order_of_a_mixture(tmp_path, monkeypatch, algorithm):
    seen, look_up = [], Origins.of

    def watched(origins, documents):
        seen.append(origins)
        return look_up(origins, documents)

    monkeypatch.setattr(Origins, "of", watched)
    sources = [(save(tmp_path, 0, 400), 0.5), (save(tmp_path, 1, 100), 0.5)]
    packer.pack(sources, tmp_path / "out", max_len=64, algorithm=algorithm)
    assert {origins.order is not None for origins in seen} == {algorithm in ("sequential", "wrapped")}


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
