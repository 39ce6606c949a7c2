"""Mixtures: how much of each source is taken, in which order, and that the rows hold exactly these documents."""

import json
from collections import Counter
from fractions import Fraction

import datasets
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import packer
from packer.cli import cli
from packer.errors import PackerError
from packer.options import PackOptions
from packer.pipeline.collect_figures import dataset_figures, packed_figures
from packer.pipeline.job import Job
from packer.pipeline.packing import pack
from packer.plan import mixture_shares
from packer.plan.mixture_shares import WeightCounter, interleave, mixture_targets, take_documents
from packer.plan.permute import key_of
from packer.random_purposes import MIXTURE
from tests import naive
from tests.test_kept import write
from tests.writing import write_ipc


def documents_of(source: int, count: int, longest=40) -> list[list[int]]:
    """Return documents whose tokens encode source and document; some documents are empty."""
    lengths = np.random.default_rng(source).integers(0, longest, count)
    return [[100_000 * (source + 1) + document] * int(length) for document, length in enumerate(lengths)]


def save(folder, source: int, count: int, kind="arrow"):
    folder = folder / f"s{source}"
    folder.mkdir(exist_ok=True)
    return write(folder, kind, {"input_ids": documents_of(source, count)})


def segments_in(out, align=1) -> Counter:
    """Count how often each (source, document, copy) begins in the rows, and check all tokens."""
    found = Counter()
    for row in packer.load(out):
        place = 0
        lengths = row.get("seq_tokens", row["seq_lengths"])
        for length, source, document, copy, start in zip(
            lengths, row["source_ids"], row["doc_ids"], row["copy"], row["doc_starts"], strict=True
        ):
            if document < 0:
                assert (source, copy) == (-1, 0)
            else:
                assert set(row["input_ids"][place : place + length]) == {100_000 * (source + 1) + document}
                found[int(source), int(document), int(copy)] += start == 0
            place += -(-length // align) * align
    return found


# ---- what is taken ----

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(any)
WEIGHTS = st.sampled_from([0.1, 0.3, 0.5, 0.7, 1, 1.5, 2, 3.25])


def take(lengths, target, *, seed=1, source=0, counted_together=7):
    """Return what is taken of a source with documents of these lengths, and its tokens."""
    counter = WeightCounter(key_of(seed, MIXTURE, source))
    kept = np.array(lengths, np.int32)
    for first in range(0, len(kept), counted_together):
        counter.add(kept[first : first + counted_together])
    return take_documents(counter, Fraction(target), kept.__getitem__)


def by_hash(count, *, seed=1, source=0):
    """Return documents in the order in which samples take them."""
    hashes = naive.draws(count, seed=seed, purpose=MIXTURE, stream=source)
    return sorted(range(count), key=hashes.__getitem__)


@settings(deadline=None)
@given(LENGTHS, st.fractions(0, 200, max_denominator=7), st.integers(0, 2**63 - 1), st.integers(0, 5))
def test_documents_taken_are_nearest_to_the_target(lengths, target, seed, source):
    found, tokens = take(lengths, target, seed=seed, source=source)
    times = found.times(0, len(lengths))
    assert times.tolist() == naive.take_documents(lengths, target, by_hash(len(lengths), seed=seed, source=source))
    assert abs(tokens - target) <= Fraction(max(lengths) + 1, 2)
    assert (found.documents, tokens) == (times.sum(), times @ lengths)
    numbered = naive.numbered([times.tolist()])
    documents, copies = found.locate(np.arange(found.documents))
    assert list(zip(documents.tolist(), copies.tolist(), strict=True)) == [(d, c) for _, d, c in numbered]


def test_large_samples_are_exact_to_the_document():
    """About 12 documents share a bucket of the counter; some documents are empty, and some targets equal."""
    lengths = np.random.default_rng(0).integers(0, 20, 50_000).tolist()
    order, whole = by_hash(len(lengths)), sum(lengths)
    targets = [1, 2, 17, 1000, whole // 3, whole // 3 + 1, whole - 1, whole, whole + 1, 3 * whole - 5, 2 * whole + 11]
    for target in targets:
        found, tokens = take(lengths, target, counted_together=9999)
        times = found.times(0, len(lengths))
        assert times.tolist() == naive.take_documents(lengths, target, order)
        assert (tokens, found.documents) == (times @ lengths, times.sum())
        numbers = np.random.default_rng(target).permutation(found.documents)
        documents, copies = found.locate(numbers)
        numbered = naive.numbered([times.tolist()])
        assert list(zip(documents.tolist(), copies.tolist(), strict=True)) == [numbered[n][1:] for n in numbers]
        assert found.numbers(documents, copies)[0].tolist() == numbers.tolist()
        every = np.arange(len(lengths))
        assert (found.numbers(every, np.full(len(every), times.min()))[1] == (times > times.min())).all()


@settings(deadline=None)
@given(st.lists(st.tuples(LENGTHS, WEIGHTS), min_size=1, max_size=4), st.sampled_from(["tokens", "epochs"]))
def test_every_stretch_has_the_shares_of_the_whole(sources, unit):
    kept = [lengths for lengths, _ in sources]
    targets = mixture_targets([sum(each) for each in kept], [w for _, w in sources], unit=unit, total=None)
    taken = [take(each, target, source=s) for s, (each, target) in enumerate(zip(kept, targets, strict=True))]
    times = [found.times(0, len(each)).tolist() for (found, _), each in zip(taken, kept, strict=True)]
    assume(any(tokens for _, tokens in taken))
    for (_, tokens), target, each in zip(taken, targets, kept, strict=True):
        assert abs(tokens - target) <= Fraction(max(each) + 1, 2)
    numbered = naive.numbered(times)
    lengths = np.array([kept[source][document] for source, document, _ in numbered], np.int32)
    order = interleave(lengths, np.cumsum([0, *(found.documents for found, _ in taken)]))
    found = [numbered[number] for number in order]
    assert found == naive.interleave(kept, times)
    whole = [max(tokens, 1) for _, tokens in taken]
    longest = max(max(each) / total for each, total in zip(kept, whole, strict=True))
    done = np.zeros(len(kept))
    for source, document, _ in found:
        done[source] += kept[source][document] / whole[source]
        shares = [done[s] for s, (_, tokens) in enumerate(taken) if tokens]
        assert max(shares) - min(shares) <= longest + 1e-9
    for source in range(len(kept)):  # a copy is complete before the next begins
        of_source = [copy for part, _, copy in found if part == source]
        assert of_source == sorted(of_source)


# ---- rows ----

KINDS = [("arrow", "jsonl"), ("shuffled", "memory"), ("parquet", "saved"), ("jsonl", "parquet")]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize(
    "options",
    [
        {"mix_unit": "epochs"},
        {"mix_tokens": 9000, "align": 4},
        {"algorithm": "wrapped"},
        {"mix_unit": "epochs", "algorithm": "sequential"},
    ],
    ids=str,
)
def test_rows_hold_the_documents_taken_and_pass_verify(tmp_path, kinds, options):
    sources = [
        save(tmp_path, number, count, kind) for number, (count, kind) in enumerate(zip((200, 60), kinds, strict=True))
    ]
    out = tmp_path / "out"
    manifest = packer.pack([(sources[0], 0.5), (sources[1], 2.25)], out, max_len=32, shard_size="8KB", **options)
    found = segments_in(out, options.get("align", 1))
    assert set(found.values()) == {1}
    assert len(manifest.shards) > 1
    kept = [[len(tokens) for tokens in documents_of(number, count)] for number, count in enumerate((200, 60))]
    total = options.get("mix_tokens", 0)
    if options.get("mix_unit") == "epochs":
        targets = [0.5 * sum(kept[0]), 2.25 * sum(kept[1])]
    else:
        total = total or min(sum(kept[0]) / (0.5 / 2.75), sum(kept[1]) / (2.25 / 2.75))
        targets = [total * 0.5 / 2.75, total * 2.25 / 2.75]
    for source, (lengths, target) in enumerate(zip(kept, targets, strict=True)):
        copies = Counter(document for part, document, _ in found if part == source)
        tokens = sum(lengths[document] * count for document, count in copies.items())
        assert abs(tokens - target) <= max(lengths) / 2 + 1
        least = int(target // sum(lengths))
        nonempty = {document for document, length in enumerate(lengths) if length}
        for document in nonempty:
            assert copies[document] in (least, least + 1)
            assert {c for p, d, c in found if (p, d) == (source, document)} == set(range(copies[document]))
        part = manifest.source.mixture[source]
        assert (part.tokens, part.taken.tokens, part.taken.copies) == (sum(lengths), tokens, least)
    assert manifest.totals.tokens == sum(part.taken.tokens for part in manifest.source.mixture)
    assert manifest.totals.documents == sum(part.taken.documents for part in manifest.source.mixture)
    if "shuffled" not in kinds:
        assert list(packer.verify(out, sources)) == []
    assert datasets.load_from_disk(str(out))[0]["source_ids"] == packer.load(out)[0]["source_ids"].tolist()


def test_by_default_nothing_is_repeated_and_the_scarcest_source_is_taken_whole(tmp_path):
    sources = [(save(tmp_path, 0, 200), 0.7), (save(tmp_path, 1, 60), 0.3)]
    manifest = packer.pack(sources, tmp_path / "out", max_len=32)
    assert [part.taken.copies for part in manifest.source.mixture] == [0, 1]
    assert manifest.source.mixture[1].taken.documents == 60
    assert {copy for _, _, copy in segments_in(tmp_path / "out")} == {0}


def test_every_shard_has_the_mixture(tmp_path):
    sources = [(save(tmp_path, 0, 3000), 0.7), (save(tmp_path, 1, 900), 0.3)]
    manifest = packer.pack(sources, tmp_path / "out", max_len=64, shard_size="40KB")
    dataset = packer.load(tmp_path / "out")
    rows = iter(dataset)
    for entry in manifest.shards[:-1]:
        counts = np.zeros(2)
        for row in (next(rows) for _ in range(entry.rows)):
            real = row["doc_ids"] >= 0
            np.add.at(counts, row["source_ids"][real], row["seq_lengths"][real])
        assert counts[0] / counts.sum() == pytest.approx(0.7, abs=0.25)


def test_the_sample_depends_on_the_seed_and_not_on_workers(tmp_path):
    sources = [(save(tmp_path, 0, 300, "jsonl"), 0.5), (save(tmp_path, 1, 50), 1.5)]
    folders = []
    for workers, seed in ((1, 3), (2, 3), (7, 3), (2, 4)):
        out = tmp_path / f"out-{workers}-{seed}"
        options = {"max_len": 32, "shard_size": "8KB", "mix_unit": "epochs"}
        packer.pack(sources, out, workers=workers, seed=seed, **options)
        folders.append({path.name: path.read_bytes() for path in out.iterdir() if path.is_file()})
    assert folders[0] == folders[1] == folders[2]
    assert {d for s, d, _ in segments_in(out) if s == 0} != {
        d for s, d, _ in segments_in(tmp_path / "out-1-3") if s == 0
    }


@pytest.mark.parametrize("long", ["truncate", "drop"])
def test_shares_are_of_the_tokens_that_reach_the_rows(tmp_path, long):
    sources = [(save(tmp_path, 0, 400), 0.5), (save(tmp_path, 1, 100), 0.5)]
    manifest = packer.pack(sources, tmp_path / "out", max_len=16, long=long)
    one, other = (
        sum(int(row["seq_lengths"][row["source_ids"] == source].sum()) for row in packer.load(tmp_path / "out"))
        for source in (0, 1)
    )
    assert abs(one - other) <= 16
    assert [part.taken.tokens_kept for part in manifest.source.mixture] == [one, other]
    assert list(packer.verify(tmp_path / "out", [path for path, _ in sources])) == []


def test_kept_columns_and_labels_belong_to_their_document(tmp_path):
    sources = []
    for number in range(2):
        tokens = documents_of(number, 40)
        (tmp_path / str(number)).mkdir()
        columns = {
            "input_ids": tokens,
            "labels": [[-100 if place % 2 else token for place, token in enumerate(each)] for each in tokens],
            "weight": [1000.0 * number + document for document in range(40)],
        }
        sources.append(write(tmp_path / str(number), ["arrow", "parquet"][number], columns))
    out = tmp_path / "out"
    packer.pack([(source, 1.5) for source in sources], out, max_len=64, mix_unit="epochs", keep=["weight"])
    for row in packer.load(out):
        real = row["doc_ids"] >= 0
        assert (row["weight"][real] == (1000 * row["source_ids"] + row["doc_ids"])[real]).all()
    assert list(packer.verify(out, sources)) == []


def test_documents_of_all_sources_are_grouped_by_their_values(tmp_path):
    sources = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        columns = {"input_ids": documents_of(number, 60), "source": [f"group {d % 9}" for d in range(60)]}
        sources.append(write(tmp_path / str(number), ["arrow", "jsonl"][number], columns))
    out = tmp_path / "out"
    mixed = [(source, 1.5) for source in sources]
    packer.pack(mixed, out, max_len=64, mix_unit="epochs", group_by="source", long="truncate")
    for row in packer.load(out):
        groups = [document % 9 for document in row["doc_ids"].tolist() if document >= 0]
        assert len(set(groups)) == 1
    assert list(packer.verify(out, sources)) == []


# ---- verify and resume ----


@pytest.mark.parametrize("changed", [0, 1])
def test_verify_finds_a_changed_token_in_either_source(tmp_path, changed):
    sources = [save(tmp_path, 0, 50), save(tmp_path, 1, 20, "jsonl")]
    out = tmp_path / "out"
    packer.pack([(source, 2.5) for source in sources], out, max_len=32, mix_unit="epochs")
    kind = ["arrow", "jsonl"][changed]
    columns = {"input_ids": documents_of(changed, [50, 20][changed])}
    document = next(d for d, tokens in enumerate(columns["input_ids"]) if len(tokens) > 3)
    columns["input_ids"][document][2] = 7
    sources[changed] = write(tmp_path / f"s{changed}", kind, columns)
    (fault,) = packer.verify(out, sources)
    assert fault.startswith(f"document {document} (source.{kind}")
    assert "of source." in fault
    assert "copy 0: input_ids at position 2 is 7 in the source" in fault


def test_verify_needs_every_source_in_order(tmp_path):
    sources = [save(tmp_path, 0, 50), save(tmp_path, 1, 20)]
    out = tmp_path / "out"
    packer.pack([(source, 1) for source in sources], out, max_len=32)
    faults = list(packer.verify(out, sources[::-1]))
    assert [fault.split(":")[0] for fault in faults] == [
        f"the source source.arrow ({number}) differs from the packed one" for number in (1, 2)
    ]
    for wrong in (sources[0], sources[:1], [*sources, sources[0]]):
        with pytest.raises(PackerError, match=r"is a mixture of source.arrow \(1\), source.arrow \(2\), and \d source"):
            list(packer.verify(out, wrong))
    packer.pack(sources[0], tmp_path / "plain", max_len=32)
    assert list(packer.verify(tmp_path / "plain", sources)) != []  # one source of two paths
    with pytest.raises(PackerError, match="is packed from one source, and 2 source"):
        list(packer.verify(tmp_path / "plain", [*sources[:1], datasets.Dataset.from_dict({"input_ids": [[1]]})]))


def test_a_complete_mixture_is_recognized_and_others_are_rejected(tmp_path):
    sources = [save(tmp_path, 0, 50), save(tmp_path, 1, 20)]
    out = tmp_path / "out"

    def again(weights=(0.7, 0.3), **options):
        return packer.pack(list(zip(sources, weights, strict=True)), out, max_len=32, **options)

    first = again()
    assert again().to_dict() == first.to_dict()
    for weights, options, words in (
        ((0.6, 0.4), {}, r"with weights \[0.7, 0.3\], not \[0.6, 0.4\]"),
        ((0.7, 0.3), {"mix_unit": "epochs"}, "with mix_unit tokens, not epochs"),
    ):
        with pytest.raises(PackerError, match=words):
            again(weights, **options)
    with pytest.raises(PackerError, match=r"with weights \[0.7, 0.3\], not \[\]"):
        packer.pack(sources[0], out, max_len=32)
    write(tmp_path / "s1", "arrow", {"input_ids": documents_of(3, 20)})
    with pytest.raises(PackerError, match=r"changed since|from other source files"):
        again()


# ---- loader ----


def test_copies_and_sources_count_as_separate_documents_in_the_loader(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    sources = [write(tmp_path / str(n), "arrow", {"input_ids": [[5, 6, 7, 8]]}) for n in range(2)]
    packer.pack([(source, 2) for source in sources], tmp_path / "out", max_len=16, mix_unit="epochs")
    rows = [packer.load(tmp_path / "out")[0]]
    batch = packer.collate(rows, format="hf", loss_weights="document", keep=["source_ids", "copy"])
    assert batch["loss_weights"].sum() == pytest.approx(4)  # 1 for each copy; a single document would have 1 in all
    assert batch["segments"]["doc_ids"].tolist() == [0, 0, 0, 0]
    assert sorted(zip(batch["segments"]["source_ids"].tolist(), batch["segments"]["copy"].tolist(), strict=True)) == [
        (0, 0), (0, 1), (1, 0), (1, 1)
    ]  # fmt: skip
    assert packer.load(tmp_path / "out").__getitems__([])[0]["source_ids"].tolist() == [-1]


# ---- errors ----


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "0.5", None, True])
def test_weights_must_be_numbers_above_0(tmp_path, weight):
    with pytest.raises(PackerError, match=r"the weight of a source is .*: it must be a number above 0"):
        packer.pack([(save(tmp_path, 0, 5), weight), (save(tmp_path, 1, 5), 1)], tmp_path / "out", max_len=32)


def test_sources_that_cannot_be_mixed_are_rejected(tmp_path):
    one, other = save(tmp_path, 0, 20), save(tmp_path, 1, 20)
    out = tmp_path / "out"

    def refused(source, words, **options):
        with pytest.raises(PackerError, match=words):
            packer.pack(source, **{"output": out, "max_len": 32, **options})
        assert not out.exists()

    refused([one, (other, 1)], r"a list of sources holds paths, .* or is a mixture of \(source, weight\)")
    refused([], r"a list of sources holds paths, .* or is a mixture of \(source, weight\)")
    refused([(one, 1), (one, 2)], "source.arrow is given twice: give it once, with the sum of the weights")
    refused([(one, 1), (tmp_path / "none", 2)], "none: no such file or folder")
    refused([(one, 1), (other, 2)], "a mixture has no name", output=None)
    refused([(one, 1), (other, 1)], "mix_tokens is 0", mix_tokens=0)
    refused(
        [(one, 1), (other, 1)],
        "mix_tokens is 9, but weights in epochs fix the size already",
        mix_tokens=9,
        mix_unit="epochs",
    )
    refused([(one, 1), (other, 1)], "mix_unit is 'rows': choose one of tokens, epochs", mix_unit="rows")
    refused(one, "mix_unit is epochs, but there is no mixture", mix_unit="epochs")
    refused(one, "mix_tokens is 9, but there is no mixture", mix_tokens=9)
    refused([(one, 1e-9), (other, 1e-9)], "nothing", mix_unit="epochs")
    refused([(one, 1), (other, 1)], "pairs are not mixed", pairs=True, long="drop")
    refused([(one, 1), (other, 1)], "all 2 sources have the column 'input_ids'", tokenizer="any")
    empty = write(tmp_path, "arrow", {"input_ids": [[], []]})
    refused([(one, 1), (empty, 1)], "source.arrow.*: there is nothing to take: all 2 documents")
    refused(
        [(one, 1), (other, 1)],
        r"source.arrow \(1\): document 0 has 34 tokens and max_len is 8",
        max_len=8,
        long="error",
    )


def test_columns_must_have_one_type_in_all_sources(tmp_path):
    paths = []
    for name, values in (("one", [1.5]), ("other", ["a"])):
        paths.append(tmp_path / f"{name}.arrow")
        table = pa.table({"input_ids": [[1, 2]], "score": values})
        write_ipc(paths[-1], table)
    with pytest.raises(PackerError, match=r"column 'score' is double in one.arrow, string in other.arrow"):
        packer.pack([(path, 1) for path in paths], tmp_path / "out", max_len=8, keep=["score"])


@pytest.mark.parametrize("kind", ["arrow", "jsonl"])
def test_an_invalid_document_is_named_in_its_own_source(tmp_path, kind):
    good = save(tmp_path, 0, 30)
    bad = write(tmp_path, kind, {"input_ids": [[1], [2, -3, 4]]})
    with pytest.raises(PackerError, match=rf"document 1 \(source.{kind}.*'input_ids' holds -3 at position 1") as raised:
        packer.pack([(good, 1), (bad, 2)], tmp_path / "out", max_len=32, mix_unit="epochs")
    assert f"source.{kind}" in str(raised.value).replace(f"(source.{kind}", "")  # names the source as well as the file


# ---- command line ----


def test_the_command_mixes_sources_and_shows_the_shares(tmp_path):
    web, code = save(tmp_path, 0, 200), tmp_path / "co:de.arrow"
    save(tmp_path, 1, 60).rename(code)
    arguments = ["pack", "--source", f"{web}:0.7", "--source", f"{code}:.3", "--max-len", "32", "-o"]
    done = CliRunner().invoke(cli, [*arguments, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    (asked,) = [line for line in lines if line[:1] == ["co:de.arrow"]]
    assert (asked[1], asked[5]) == ("30.0%", "1")
    assert float(asked[4].rstrip("%")) == pytest.approx(30, abs=1)
    same = packer.pack([(web, 0.7), (code, 0.3)], tmp_path / "python", max_len=32)
    assert (tmp_path / "python/manifest.json").read_bytes() == (tmp_path / "out/manifest.json").read_bytes()
    assert str(tmp_path) not in json.dumps(same.to_dict())
    checked = CliRunner().invoke(
        cli, ["verify", str(tmp_path / "out"), "--source", str(web), "--source", str(code), "--json"]
    )
    assert checked.exit_code == 0, checked.output
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "out"), "0"])
    assert "of source 1, copy 0" in shown.output or "of source 0, copy 0" in shown.output


def test_the_command_rejects_invalid_mixtures(tmp_path):
    source = save(tmp_path, 0, 20)
    for arguments, code, words in (
        ([], 2, "Give a DATASET, or a mixture of several with --source PATH:WEIGHT."),
        (
            [str(source), "--source", str(source)],
            2,
            "Give a DATASET, or a mixture of several with --source PATH:WEIGHT.",
        ),
        (["--source", f"{source}:x"], 2, "'x' is not a weight; write PATH:WEIGHT, as in web:0.7"),
        (["--source", f"{source}:0"], 2, "the weight of a source is 0.0: it must be a number above 0"),
        (["--source", f"{source}:nan"], 2, "the weight of a source is nan: it must be a number above 0"),
    ):
        done = CliRunner().invoke(cli, ["pack", *arguments, "--max-len", "32", "-o", str(tmp_path / "out")])
        assert (done.exit_code, words in done.output) == (code, True), done.output
    twice = ["pack", "--source", f"{source}:2", "--mix-unit", "epochs", "--max-len", "32", "-o", str(tmp_path / "out")]
    assert CliRunner().invoke(cli, twice).exit_code == 0
    assert {copy for _, _, copy in segments_in(tmp_path / "out")} == {0, 1}


@pytest.mark.parametrize("algorithm", ["auto", "sequential"])
def test_the_rows_shown_of_a_mixture_name_sources_and_documents_as_the_packed_rows_do(tmp_path, algorithm):
    sources = [save(tmp_path, 0, 200, "jsonl"), save(tmp_path, 1, 60, "parquet")]
    options = PackOptions(max_len=32, weights=(0.7, 0.3), algorithm=algorithm)
    before = dataset_figures(sources, options=options, for_report=True).shown_rows
    pack(sources, options=options, job=Job(output=tmp_path / "out"))
    after = packed_figures(tmp_path / "out", for_report=True).shown_rows
    assert {source for row in after for source in row.sources} == {0, 1}
    for one, other in zip(before, after, strict=True):
        assert (one.row, one.sources, one.documents) == (other.row, other.sources, other.documents)
        assert (one.starts, one.lengths) == (other.starts, other.lengths)


# ---- in order, and what cannot be ----


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
        write_ipc(folder / f"{number}.arrow", table)
    with pytest.raises(PackerError, match="document 61 has 40 tokens and max_len is 39"):
        packer.pack([(one, 1), (folder, 1)], tmp_path / "out", max_len=39, long="error")
