"""Columns that are kept beside the tokens, and masks that become labels."""

import json
import math
from collections import Counter
from datetime import date

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import packer
from packer.errors import PackerError
from tests.helpers.commands import succeeded
from tests.helpers.kept import KINDS, write
from tests.helpers.opening import open_source
from tests.helpers.writing import write_ipc

WORDS = ["news", "code", None, "books", ""]


def made_source(documents=200, seed=0) -> dict[str, list]:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 50, documents).tolist()
    return {
        "input_ids": [random.integers(1, 1000, length).tolist() for length in lengths],
        "weight": [float(number) / 7 for number in range(documents)],
        "source": [WORDS[number % len(WORDS)] for number in range(documents)],
        "clean": [number % 3 == 0 for number in range(documents)],
        "logprob": [(-random.random(length)).astype(np.float32).tolist() for length in lengths],
        "kind": [random.integers(0, 2, length).tolist() for length in lengths],
    }


def segments_with(dataset: packer.PackedDataset, per_segment=(), per_token=()):
    """Yield (document, start, tokens, labels, values per segment, values per token) of every segment."""
    for row in dataset:
        place = 0
        lengths = row.get("seq_tokens", row["seq_lengths"])
        for number, document in enumerate(row["doc_ids"]):
            here = slice(place, place + int(lengths[number]))
            if document >= 0:
                kept = [row[name][number] for name in per_segment]
                tokens = [row[name][here].tolist() for name in per_token]
                pieces = row["input_ids"][here].tolist(), row["labels"][here].tolist()
                yield int(document), int(row["doc_starts"][number]), *pieces, kept, tokens
            place += int(row["seq_lengths"][number])


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"align": 4}, {"algorithm": "wrapped"}], ids=str)
def test_every_segment_has_the_values_of_its_document(tmp_path, kind, options):
    columns = made_source()
    keep, keep_tokens = ["weight", "source", "clean"], ["logprob", "kind"]
    source = write(tmp_path, kind, columns)
    out = tmp_path / "out"
    packer.pack(source, out, max_len=32, shard_size="6KB", keep=keep, keep_tokens=keep_tokens, **options)
    dataset = packer.load(out)
    found = list(segments_with(dataset, keep, keep_tokens))
    assert len(dataset.manifest.shards) > 5
    row_bytes = 32 * (4 + 4 + 4 + 1)  # tokens, labels, logprob and kind
    assert max(shard.rows for shard in dataset.manifest.shards) <= 6000 // row_bytes
    assert {document for document, *_ in found} == {d for d, tokens in enumerate(columns["input_ids"]) if tokens}
    for document, start, tokens, _, (weight, name, clean), (logprobs, kinds) in found:
        here = slice(start, start + len(tokens))
        assert tokens == columns["input_ids"][document][here]
        assert (weight, name, clean) == tuple(columns[of][document] for of in keep)
        assert logprobs == pytest.approx(columns["logprob"][document][here])
        assert kinds == columns["kind"][document][here]
    assert list(packer.verify(out, source)) == []
    rows = datasets.load_from_disk(str(out))
    assert rows[0]["source"] == dataset[0]["source"].tolist()
    for row in rows:
        for name, filler in (("weight", 0), ("source", None), ("clean", False)):
            assert [v for v, d in zip(row[name], row["doc_ids"], strict=True) if d < 0] in ([], [filler])
    for row in dataset:
        extents = row["seq_lengths"]
        lengths = np.where(row["doc_ids"] < 0, 0, row.get("seq_tokens", extents))
        padding = np.arange(32) >= np.repeat(np.cumsum(extents) - extents + lengths, extents)
        assert not any(row[name][padding].any() for name in keep_tokens)


@pytest.mark.parametrize("changed", ["weight", "source", "logprob", "input_ids"])
def test_verify_compares_kept_columns(tmp_path, changed):
    columns = made_source(50)
    out = tmp_path / "out"
    packer.pack(write(tmp_path, "arrow", columns), out, max_len=32, keep=["weight", "source"], keep_tokens=["logprob"])
    assert list(packer.verify(out, tmp_path / "source.arrow")) == []
    document = max(d for d, tokens in enumerate(columns["input_ids"]) if len(tokens) > 3)
    length = len(columns["input_ids"][document])
    others = {"weight": -1.0, "source": "other", "logprob": [0.5] * length, "input_ids": [1000] * length}
    columns[changed][document] = others[changed]
    (fault,) = packer.verify(out, write(tmp_path, "arrow", columns))
    assert fault.startswith(f"document {document} ")
    assert changed in fault


@pytest.mark.parametrize("beside", [1.0, None])
def test_verify_treats_nan_as_equal_to_nan(tmp_path, beside):
    columns = {"input_ids": [[1, 2]] * 3, "weight": [math.nan, beside, 2.0]}
    source = write(tmp_path, "arrow", columns)
    packer.pack(source, tmp_path / "out", max_len=4, keep=["weight"])
    assert list(packer.verify(tmp_path / "out", source)) == []
    columns["weight"][2] = math.nan
    (fault,) = packer.verify(tmp_path / "out", write(tmp_path, "arrow", columns))
    assert fault == "document 2 (source.arrow row 2): weight is nan in the source, 2.0 in the rows"


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": ["missing"]}, "no column 'missing'"),
        ({"keep_tokens": ["weight"]}, r"'weight' holds .* lists? of numbers"),
        ({"keep": ["labels"]}, "the rows have a column of that name"),
        ({"keep": ["doc_ids"]}, "the rows have a column of that name"),
        ({"keep": ["weight"], "keep_tokens": ["weight"]}, "it is named 2 times"),
        ({"keep_tokens": ["attention_mask"]}, "masks become labels"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused(tmp_path, kind, options, words):
    with pytest.raises(PackerError, match=words):
        packer.pack(write(tmp_path, kind, made_source(5)), tmp_path / "out", max_len=32, **options)


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
def test_a_column_per_token_is_as_long_as_its_document(tmp_path, kind):
    columns = {"input_ids": [[1, 2], [3, 4, 5]], "kind": [[0, 1], [0, 1]]}
    with pytest.raises(PackerError, match=r"document 1 .*'kind' has 2 values for 3 tokens"):
        packer.pack(write(tmp_path, kind, columns), tmp_path / "out", max_len=8, keep_tokens=["kind"])
    columns = {"input_ids": [[1, 2], [3, 4, 5]], "kind": [[0, 1], [0, None, 1]]}
    with pytest.raises(PackerError, match=r"document 1 .*'kind' holds a null at position 1 of 3"):
        packer.pack(write(tmp_path, kind, columns), tmp_path / "out", max_len=8, keep_tokens=["kind"])


# ---- masks ----


def masked(columns: dict[str, list]) -> list[tuple[list[int], list[int]]]:
    """Return (tokens, labels) of every document after the masks are applied."""
    documents = []
    for row, tokens in enumerate(columns["input_ids"]):
        labels = list(columns.get("labels", columns["input_ids"])[row])
        for name in ("loss_mask", "completion_mask", "assistant_masks"):
            if name in columns:
                labels = [label if on else -100 for label, on in zip(labels, columns[name][row], strict=True)]
        attended = columns.get("attention_mask", [[1] * len(tokens) for tokens in columns["input_ids"]])[row]
        real = [place for place, on in enumerate(attended) if on]
        documents.append(([tokens[place] for place in real], [labels[place] for place in real]))
    return documents


@st.composite
def sources(draw):
    documents = st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=6)
    columns: dict[str, list] = {"input_ids": draw(documents)}
    lengths = [len(tokens) for tokens in columns["input_ids"]]
    if draw(st.booleans()):
        columns["labels"] = [[draw(st.sampled_from([-100, 7])) for _ in range(length)] for length in lengths]
    for name in ("loss_mask", "completion_mask", "assistant_masks"):
        if draw(st.booleans()):
            columns[name] = [[draw(st.booleans()) for _ in range(length)] for length in lengths]
            if name != "loss_mask":
                columns[name] = [[int(on) for on in mask] for mask in columns[name]]
    if draw(st.booleans()):
        pads = [(draw(st.integers(0, length)), draw(st.integers(0, 9))) for length in lengths]
        columns["attention_mask"] = [
            [0] * min(left, length) + [1] * max(length - left - right, 0) + [0] * min(right, max(length - left, 0))
            for (left, right), length in zip(pads, lengths, strict=True)
        ]
    columns["kind"] = [[place % 2 for place in range(length)] for length in lengths]
    return columns


@settings(deadline=None, max_examples=30)
@given(sources(), st.sampled_from(["arrow", "parquet", "memory", "shuffled"]))
def test_masks_become_labels_and_padding_is_removed(tmp_path_factory, columns, kind):
    folder = tmp_path_factory.mktemp("masks")
    source = write(folder, kind, columns)
    expected = masked(columns)
    if not any(tokens for tokens, _ in expected):
        with pytest.raises(PackerError, match="nothing to pack"):
            packer.pack(source, folder / "out", max_len=16, untrained="keep-all")
        return
    options = {"max_len": 16, "keep_tokens": ["kind"], "sync": False, "untrained": "keep-all"}
    totals = packer.pack(source, folder / "out", **options).totals
    ids = sum(map(len, columns["input_ids"]))
    assert (totals.tokens_stripped or 0) + totals.tokens == ids, "padding that a mask removes is counted"
    found = {d: (tokens, labels, kinds) for d, _, tokens, labels, _, (kinds,) in
             segments_with(packer.load(folder / "out"), per_token=["kind"])}  # fmt: skip
    assert set(found) == {d for d, (tokens, _) in enumerate(expected) if tokens}
    for document, (tokens, labels, kinds) in found.items():
        assert tokens == expected[document][0]
        assert labels[1:] == expected[document][1][1:]
        attended = columns.get("attention_mask", {document: [1] * len(tokens)})[document]
        assert kinds == [kind for kind, on in zip(columns["kind"][document], attended, strict=True) if on]
    if kind != "shuffled":
        assert list(packer.verify(folder / "out", source)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_stays_mapped_if_its_masks_are_all_ones(tmp_path, kind):
    columns = made_source(100)
    plain = {"input_ids": columns["input_ids"]}
    ones = [[1] * len(tokens) for tokens in columns["input_ids"]]
    source = write(tmp_path, kind, {**plain, "attention_mask": ones, "assistant_masks": ones})
    opened = open_source(source)
    assert opened.mapped == (kind not in ("parquet", "jsonl"))
    assert opened.has_labels != opened.mapped
    packer.pack(source, tmp_path / "out", max_len=64)
    found = {d: tokens for d, _, tokens, *_ in segments_with(packer.load(tmp_path / "out"))}
    assert [found.get(d, []) for d in range(100)] == columns["input_ids"]


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
@pytest.mark.parametrize(
    ("mask", "name", "words"),
    [
        ([[1, 1], [1, 0, 1]], "attention_mask", "'attention_mask' is 0 at position 1, between tokens"),
        ([[1, 1], [0, 1, 2]], "completion_mask", "'completion_mask' holds 2 at position 2: a mask is 0 or 1"),
        ([[1, 1], [1, 1]], "assistant_masks", "'assistant_masks' has 2 values for 3 tokens"),
    ],
)
def test_wrong_masks_are_named_with_their_document(tmp_path, kind, mask, name, words):
    columns = {"input_ids": [[1, 2], [3, 4, 5]], name: mask}
    with pytest.raises(PackerError, match=rf"document 1 .*{words}"):
        packer.pack(write(tmp_path, kind, columns), tmp_path / "out", max_len=8)


def test_a_file_without_the_masks_of_the_first_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, columns in (("a", {"input_ids": [[1, 2]], "loss_mask": [[True, False]]}), ("b", {"input_ids": [[3]]})):
        write(tmp_path, "arrow", columns).rename(folder / f"{name}.arrow")
    with pytest.raises(PackerError, match=r"b.arrow: no column 'loss_mask' \(found: input_ids\); all files need it"):
        packer.pack(folder, tmp_path / "out", max_len=8)


# ---- segments without trained tokens ----

UNTRAINED_OPTIONS = [
    {},
    {"algorithm": "sequential"},
    {"long": "truncate"},
    {"long": "drop", "align": 4},
]


@pytest.mark.nightly(after=2 * len(UNTRAINED_OPTIONS))
@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("options", UNTRAINED_OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["arrow", "jsonl", "shuffled"])
def test_untrained_segments_are_left_out_and_counted(tmp_path, kind, options, labels):
    random = np.random.default_rng(3)
    lengths = random.integers(0, 40, 150).tolist()
    columns = {"input_ids": [random.integers(1, 99, length).tolist() for length in lengths]}
    if labels:
        columns["labels"] = [[t if random.random() < 0.08 else -100 for t in ids] for ids in columns["input_ids"]]
    source = write(tmp_path, kind, columns)
    packer.pack(source, tmp_path / "all", max_len=12, **options)
    manifest = packer.pack(source, tmp_path / "some", max_len=12, untrained="drop", **options)
    every, some = (sorted(segments_with(packer.load(tmp_path / name))) for name in ("all", "some"))
    assert some == [segment for segment in every if max(segment[3]) >= 0]
    assert len(some) < len(every)
    totals = manifest.totals
    assert totals.segments_untrained == 0
    assert packer.load(tmp_path / "all").manifest.totals.segments_untrained == len(every) - len(some)

    def covered(segments):
        return {(d, start + place) for d, start, ids, *_ in segments for place in range(len(ids))}

    assert totals.tokens_dropped["untrained"] == len(covered(every)) - len(covered(some))
    assert totals.documents_dropped["untrained"] == len({d for d, *_ in every} - {d for d, *_ in some})
    assert totals.documents_split == sum(count > 1 for count in Counter(d for d, *_ in some).values())
    assert totals.tokens_packed == len(covered(some))
    assert len(covered(some)) + totals.tokens_lost == totals.tokens
    if kind != "shuffled":
        assert list(packer.verify(tmp_path / "some", source)) == []
    with pytest.raises(PackerError, match=r"segments have no trained token, the first of them in document \d+"):
        packer.pack(source, tmp_path / "none", max_len=12, untrained="error", **options)


def test_dates_stay_arrays_in_batches_of_tensors(tmp_path):
    days = [date(2026, 1, 1), date(2026, 1, 2)]
    pq.write_table(pa.table({"input_ids": [[1, 2], [3, 4, 5]], "day": days}), tmp_path / "rows.parquet")
    packer.pack(tmp_path / "rows.parquet", tmp_path / "out", max_len=8, keep=["day"])
    (batch,) = packer.batches(packer.load(tmp_path / "out"), rows=1, keep=["day"])
    assert sorted(batch["segments"]["day"].astype(str).tolist()) == ["2026-01-01", "2026-01-02"]


def test_show_prints_json_whatever_numbers_are_kept(tmp_path):
    columns = {"input_ids": [[1, 2, 3]], "weight": [float("nan")], "logprob": [[float("-inf"), -0.5, 0.0]]}
    packer.pack(
        write(tmp_path, "arrow", columns), tmp_path / "out", max_len=3, keep=["weight"], keep_tokens=["logprob"]
    )
    shown = succeeded("show", tmp_path / "out", 0, "--json")
    (segment,) = json.loads(shown, parse_constant=pytest.fail)["rows"][0]["segments"]
    assert segment["kept"] == {"weight": None}
    assert segment["kept_tokens"] == {"logprob": [None, -0.5, 0.0]}


EXACT = {
    "id": (pa.int64(), [2**53 + 1, None, -(2**63), 7]),
    "hash": (pa.uint64(), [None, 2**64 - 1, 2**53 + 1, 0]),
    "small": (pa.int8(), [-5, 4, None, 3]),
    "clean": (pa.bool_(), [True, None, False, True]),
    "weight": (pa.float64(), [0.1, math.inf, None, -0.0]),
    "day": (pa.date32(), [date(2026, 1, 1), None, date(1, 1, 1), date(9999, 12, 31)]),
    "boxes": (pa.list_(pa.int64()), [[2**53 + 1, None], None, [], [3]]),
    "deep": (pa.list_(pa.struct([("a", pa.uint64())])), [[{"a": 2**53 + 1}, {"a": None}], [], None, [{"a": 1}]]),
    "name": (pa.string(), ["a", None, "", "b"]),
}


@pytest.mark.parametrize("index_only", [False, True])
def test_kept_values_are_exact_and_of_one_type_in_all_rows(tmp_path, index_only):
    """One document fills a row, so a null stands alone, next to values, or in no row of the record batch."""
    repeats = 3
    columns = {name: pa.array(values * repeats, kind) for name, (kind, values) in EXACT.items()}
    lengths = [(8, 3, 5, 8)[number % 4] for number in range(4 * repeats)]
    table = pa.table({"input_ids": pa.array([[1] * length for length in lengths], pa.list_(pa.int32())), **columns})
    pq.write_table(table, tmp_path / "rows.parquet")
    write_ipc(tmp_path / "rows.arrow", table)
    packer.pack(
        tmp_path / "rows.arrow", tmp_path / "out", max_len=8, keep=list(EXACT), index_only=index_only, shard_size="1KB"
    )
    dataset = packer.load(tmp_path / "out", source=tmp_path / "rows.arrow" if index_only else None)
    types, found = {name: set() for name in EXACT}, {name: {} for name in EXACT}
    for row in dataset:
        for name in EXACT:
            types[name].add((type(row[name]), row[name].dtype))
            found[name] |= zip(row["doc_ids"].tolist(), row[name].tolist(), strict=True)
    for name, (_, values) in EXACT.items():
        assert len(types[name]) == 1, name
        assert [found[name][document] for document in range(4 * repeats)] == values * repeats, name
    everything = packer.batches(dataset, rows=len(dataset), keep=list(EXACT), tensors="numpy")
    segments = next(everything)["segments"]
    for name, (_, values) in EXACT.items():
        assert segments[name].tolist() == [(values * repeats)[document] for document in segments["doc_ids"]], name


def test_tensors_hold_kept_numbers_unless_a_whole_number_is_missing(tmp_path):
    columns = {"id": [2**53 + 1, 5, None], "full": [2**53 + 1, 5, 2**63 - 1], "weight": [0.5, None, math.nan]}
    pq.write_table(pa.table({"input_ids": [[1, 2]] * 3, **columns}), tmp_path / "rows.parquet")
    packer.pack(tmp_path / "rows.parquet", tmp_path / "out", max_len=8, keep=list(columns))
    (batch,) = packer.batches(packer.load(tmp_path / "out"), rows=1, keep=list(columns))
    order, segments = batch["segments"]["doc_ids"].tolist(), batch["segments"]
    assert segments["id"].tolist() == [columns["id"][document] for document in order]
    assert isinstance(segments["id"], np.ma.MaskedArray)
    assert segments["full"].tolist() == [columns["full"][document] for document in order]
    assert segments["full"].dtype == torch.int64
    assert segments["weight"].isnan().tolist() == [document > 0 for document in order]


def test_lists_of_kept_numbers_stay_exact_in_batches():
    row = {"input_ids": [1, 2], "seq_lengths": [2], "doc_ids": [0], "doc_starts": [0]}
    rows = [{**row, "hash": [2**53 + 1]}, {**row, "hash": [2**64 - 1]}, {**row, "hash": [None]}]
    for count in (2, 3):
        batch = packer.collate(rows[:count], keep=["hash"], tensors="numpy")
        assert batch["segments"]["hash"].tolist() == [2**53 + 1, 2**64 - 1, None][:count]


def test_show_prints_kept_values_exactly(tmp_path):
    table = pa.table({"input_ids": [[1, 2], [3, 4, 5]], "id": [2**53 + 1, None], "boxes": [[2**53 + 1, None], [2]]})
    pq.write_table(table, tmp_path / "rows.parquet")
    packer.pack(tmp_path / "rows.parquet", tmp_path / "out", max_len=5, keep=["id", "boxes"])
    shown = succeeded("show", tmp_path / "out", 0, "--json")
    kept = {segment["doc_id"]: segment["kept"] for segment in json.loads(shown)["rows"][0]["segments"]}
    assert kept[0] == {"id": 2**53 + 1, "boxes": [2**53 + 1, None]}
    assert kept[1] == {"id": None, "boxes": [2]}
    text = succeeded("show", tmp_path / "out", 0)
    assert "9007199254740993" in text
    assert "null" in text


@pytest.mark.parametrize("other", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("a", kind)])])
def test_decimals_never_become_floats(tmp_path, other, wrap):
    folder = tmp_path / "source"
    folder.mkdir()
    for name, kind in (("a", pa.decimal128(12, 2)), ("b", other)):
        table = pa.table({"input_ids": [[1, 2]], "k": pa.nulls(1, wrap(kind))})
        pq.write_table(table, folder / f"{name}.parquet")
    with pytest.raises(
        PackerError, match=r"column 'k' is .*decimal128.* in a\.parquet, .* in b\.parquet; use one type"
    ):
        packer.pack(folder, tmp_path / "out", max_len=8, keep=["k"])


def test_integers_may_stand_beside_decimals(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for name, kind in (("a", pa.decimal128(12, 2)), ("b", pa.int32())):
        pq.write_table(pa.table({"input_ids": [[1, 2]], "k": pa.array([7], kind)}), folder / f"{name}.parquet")
    packer.pack(folder, tmp_path / "out", max_len=8, keep=["k"])
    assert packer.verify(tmp_path / "out", folder) == []
