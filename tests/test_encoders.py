"""Encoders on packed rows: hidden states, masked loss, pooled outputs and gradients are those of documents alone.

Rows hold at most three segments, as Krell et al. pack for BERT (arXiv 2107.02027).
"""

import functools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer.column_names import NO_LOSS, PADDING
from tests.helpers import naive
from tests.helpers.formats import drawn_rows, lists, many_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

from tests.helpers.families import VOCABULARY, tiny_model  # noqa: E402  needs torch, as all that follows
from tests.helpers.models import gradients  # noqa: E402

MAX_LEN, MAX_SEGMENTS = 24, 3
LENGTHS = [5, 20, 1, 22, 7, 3, 24, 2, 17, 13, 4, 4, 6, 9]
MASK = 3
MLM = packer.MaskedLM(mask_id=MASK, vocab_size=VOCABULARY, special_ids=[0, 1, 2], probability=0.3)
OFFSETS = {"roberta": 1}  # the padding's id plus 1
TYPES = "token_type_ids"


# ---- the batch ----


@given(many_rows, st.sampled_from([0, 2]), st.booleans(), st.data())
def test_the_batch_equals_the_naive_one(lengths, offset, additive, data):
    rows, arrays = drawn_rows(lengths, True, data)
    for row, values in zip(rows, arrays, strict=True):
        row["label"] = [data.draw(st.integers(0, 5)) for _ in row["doc_ids"]]
        row[TYPES] = data.draw(st.lists(st.integers(0, 1), min_size=8, max_size=8))
        values |= {"label": np.array(row["label"], np.int8), TYPES: np.array(row[TYPES], np.int8)}
    places, pooled = naive.encoder_rows(rows, offset=offset)
    numbers = [[number for _, number in row] for row in places]
    mask = [[[[one == other for other in row] for one in row]] for row in numbers]
    least = float(np.finfo(np.float32).min)
    options = {"position_offset": offset, "keep": ["label"], "keep_tokens": ["labels"], "tensors": "numpy"}
    found = packer.collate(arrays, format="encoder", additive_mask=additive, **options)

    def of_segments(name):
        values = [value for row in rows for value in zip(row[name], row["doc_ids"], strict=True)]
        return [value for value, document in values if document != PADDING]

    assert lists(found) == {
        "input_ids": [row["input_ids"] for row in rows],
        "position_ids": [[position for position, _ in row] for row in places],
        "attention_mask": [[[[0.0 if see else least for see in line] for line in row[0]]] for row in mask]
        if additive
        else mask,
        TYPES: [row[TYPES] for row in rows],
        "labels": [row["labels"] for row in rows],
        "segments": {
            "segment_ids": numbers,
            "pooling_positions": pooled,
            "doc_ids": of_segments("doc_ids"),
            "label": of_segments("label"),
        },
    }  # fmt: skip
    flat = packer.collate(arrays, **{**options, "keep_tokens": [TYPES]})
    assert flat["segments"]["pooling_positions"].tolist() == flat["cu_seq_lens_q"][:-1].tolist()
    assert flat["segments"]["label"].tolist() == found["segments"]["label"].tolist()
    taken = np.array(numbers) > 0
    for name in ("position_ids", TYPES):
        assert flat[name][0].tolist() == found[name][taken].tolist()


def test_no_segment_sees_another_in_a_row_of_more_than_256():
    length = 300
    row = {
        "input_ids": np.arange(length, dtype=np.int32),
        "seq_lengths": np.ones(length, np.int32),
        "doc_ids": np.arange(length, dtype=np.int64),
        "doc_starts": np.zeros(length, np.int32),
    }
    mask = packer.collate([row], format="encoder", tensors="numpy")["attention_mask"]
    assert np.array_equal(mask[0, 0], np.eye(length, dtype=bool))


def test_the_batch_has_the_documented_types(dataset):
    batch = packer.collate(dataset.__getitems__([0, 1]), format="encoder", mlm=MLM, loss_weights="document")
    segments = batch.pop("segments")
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()} == {
        **dict.fromkeys(("input_ids", "position_ids", "labels", TYPES), (torch.int64, (2, MAX_LEN))),
        "attention_mask": (torch.bool, (2, 1, MAX_LEN, MAX_LEN)),
        "loss_weights": (torch.float64, (2, MAX_LEN)),
    }
    count = len(segments["doc_ids"])
    assert {name: (value.dtype, tuple(value.shape)) for name, value in segments.items()} == {
        "segment_ids": (torch.int32, (2, MAX_LEN)),
        "pooling_positions": (torch.int64, (count,)),
        "doc_ids": (torch.int64, (count,)),
    }


# ---- training ----


@pytest.fixture(scope="module")
def documents():
    """(tokens, token types) of every document: a special token at either end, two sentences."""
    random = np.random.default_rng(0)
    found = []
    for length in LENGTHS:
        tokens = [1, *random.integers(4, VOCABULARY, max(length - 2, 0)).tolist(), 2][:length]
        found.append((tokens, [int(place > length // 2) for place in range(length)]))
    return found


@pytest.fixture(scope="module")
def dataset(documents, tmp_path_factory):
    out = tmp_path_factory.mktemp("encoders") / "packed"
    columns = {
        "input_ids": pa.array([tokens for tokens, _ in documents], pa.list_(pa.int32())),
        TYPES: pa.array([types for _, types in documents], pa.list_(pa.int8())),
        "label": pa.array([number % 2 for number in range(len(documents))], pa.int16()),
    }
    options = {"max_segments": MAX_SEGMENTS, "keep": ["label"], "keep_tokens": [TYPES]}
    packer.pack(datasets.Dataset(pa.table(columns)), out, max_len=MAX_LEN, labels=False, sync=False, **options)
    rows = packer.load(out)
    assert 3 < len(rows) < 12
    assert max((row["doc_ids"] != PADDING).sum() for row in rows) == MAX_SEGMENTS
    assert {TYPES, "label"} <= set(rows.column_names)
    return rows


def measure(model, batches, *, items, epoch_segments):
    """(hidden states, pooled outputs, losses, gradients) over batches of (inputs, labels, weights, names of segments).

    The loss is that of masked tokens, and of a readout of the pooled outputs.
    """
    model.zero_grad()
    readout = torch.linspace(-1, 1, model.config.hidden_size, dtype=model.dtype)
    hidden, pooled, losses = {}, {}, torch.zeros(2, dtype=torch.float64)
    for inputs, labels, weights, (names, lengths, positions) in batches:
        output = model(**inputs, output_hidden_states=True)
        states = output.hidden_states[-1].flatten(0, 1)
        firsts = states[positions]
        masked = packer.masked_lm_loss(output.logits, labels, num_items=items, weights=weights)
        classified = (firsts @ readout).square().sum() / epoch_segments
        (masked + classified).backward()
        losses += torch.tensor([masked.item(), classified.item()], dtype=torch.float64)
        for name, length, position, first in zip(names, lengths, positions.tolist(), firsts, strict=True):
            hidden[name], pooled[name] = states[position : position + length].detach(), first.detach()
    return hidden, pooled, losses, gradients(model)


def pieces_of(dataset, documents):
    """(document, start): (tokens, types) of every segment."""
    columns = ("doc_ids", "doc_starts", "seq_lengths")
    named = [each for row in dataset for each in zip(*(row[name].tolist() for name in columns), strict=True)]
    return {
        (doc, start): tuple(values[start : start + length] for values in documents[doc])
        for doc, start, length in named
        if doc != PADDING
    }


@pytest.fixture(scope="module")
def alone(dataset, documents):
    """What a family makes of every segment by itself, masked by the naive twin; by (family, dtype, mean)."""
    pieces = pieces_of(dataset, documents)
    masked = {
        name: naive.masked_segment(tokens, *name, mlm=MLM, epoch=0) for name, (tokens, _) in pieces.items()
    }  # fmt: skip
    trained = {name: sum(label != NO_LOSS for label in labels) for name, (_, labels) in masked.items()}

    def run(family, dtype, mean):
        batches = []
        for name, (_, types) in pieces.items():
            hidden, labels = (torch.tensor([values]) for values in masked[name])
            inputs = {"input_ids": hidden, **with_types(family, torch.tensor([types]))}
            weights = (labels != NO_LOSS).double() / max(trained[name], 1) if mean == "document" else None
            batches.append((inputs, labels, weights, ([name], [len(types)], torch.tensor([0]))))
        items = sum(trained.values()) if mean is None else sum(count > 0 for count in trained.values())
        return measure(tiny_model(family, dtype=dtype), batches, items=items, epoch_segments=len(pieces))

    return functools.cache(run)


def with_types(family, types):
    return {TYPES: types} if family == "bert" else {}


def run_packed(model, family, dataset, *, rows, mean, **options):
    options |= {"mlm": MLM, "loss_weights": mean, "position_offset": OFFSETS.get(family, 0), "keep": ["label"]}
    batches = list(packer.batches(dataset, rows=rows, seed=None, **options))
    items = packer.num_items_in_batch(batches)
    names = iter(pieces_of(dataset, [([0] * length,) * 2 for length in LENGTHS]).items())
    prepared = []
    for batch in batches:
        segments, labels, weights = batch.pop("segments"), batch.pop("labels"), batch.pop("loss_weights", None)
        types = batch.pop(TYPES, None)
        inputs = batch if types is None else {**batch, **with_types(family, types)}
        mine = [next(names) for _ in segments["doc_ids"]]
        assert [doc for (doc, _), _ in mine] == segments["doc_ids"].tolist()
        assert segments["label"].tolist() == [doc % 2 for (doc, _), _ in mine]
        lengths = [len(tokens) for _, (tokens, _) in mine]
        prepared.append((inputs, labels, weights, ([name for name, _ in mine], lengths, segments["pooling_positions"])))
    count = sum(len(each[3][0]) for each in prepared)
    return measure(model, prepared, items=items, epoch_segments=count)


def distance(found, expected):
    """Largest difference of what `measure` gives, each relative to its largest value if that is above 1."""
    differences = [(found[2] - expected[2]).abs().max().item()]
    for mine, other in zip((found[0], found[1], found[3]), (expected[0], expected[1], expected[3]), strict=True):
        assert set(mine) == set(other)
        differences += [((mine[n] - other[n]).abs().max() / other[n].abs().max().clamp(min=1)).item() for n in other]
    return max(differences)


WAYS = [
    ("bert", "sdpa", {"format": "encoder"}),
    ("bert", "eager", {"format": "encoder", "additive_mask": True}),
    *((family, "packer_varlen", {"keep_tokens": [TYPES]}) for family in ("bert", "roberta", "electra", "modernbert")),
    *((family, "sdpa", {"format": "encoder"}) for family in ("roberta", "electra")),
    ("roberta", "eager", {"format": "encoder", "additive_mask": True}),
]


@pytest.mark.nightly(after=4)
@pytest.mark.parametrize("mean", [None, "document"])
@pytest.mark.parametrize(
    ("family", "attention", "options"), WAYS, ids=lambda each: each if isinstance(each, str) else ""
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_packed_encoders_train_as_documents_alone(family, attention, options, mean, dtype, dataset, alone):
    expected = alone(family, dtype, mean)
    assert max(each.abs().max() for each in expected[3].values()) > 0.001, "nothing to compare"
    for rows in (1, 3):
        varlen = attention == "packer_varlen"
        model = tiny_model(family, attention=None if varlen else attention, dtype=dtype)
        model = packer.attention.use(model) if varlen else model
        found = run_packed(model, family, dataset, rows=rows, mean=mean, **options)
        assert distance(found, expected) < {torch.float32: 1e-5, torch.float64: 1e-10}[dtype], rows


def test_without_what_the_batch_says_it_is_not_the_same(dataset, alone):
    for family, attention, options in [
        ("bert", "eager", {"format": "encoder"}),  # adds a mask of bool
        ("modernbert", "sdpa", {"format": "encoder"}),  # its windows are lost
        ("bert", "sdpa", {"format": "hf", "keep_tokens": [TYPES]}),  # no mask
    ]:
        model = tiny_model(family, attention=attention)
        found = run_packed(model, family, dataset, rows=3, mean=None, **options)
        assert distance(found, alone(family, torch.float32, None)) > 1e-3
    model = tiny_model("roberta", attention="sdpa")
    found = run_packed(model, "", dataset, rows=3, mean=None, format="encoder")  # positions from 0
    assert distance(found, alone("roberta", torch.float32, None)) > 1e-3


def test_masked_tokens_are_trained_at_their_own_place():
    logits = torch.randn(2, 5, 7, dtype=torch.float64)
    labels = torch.tensor([[3, -100, -100, 2, -100], [-100, -100, -100, -100, 6]])
    chosen = logits.log_softmax(-1)
    expected = -(chosen[0, 0, 3] + chosen[0, 3, 2] + chosen[1, 4, 6])
    assert packer.masked_lm_loss(logits, labels, num_items=3).item() == pytest.approx(expected.item() / 3)
    weights = torch.tensor([[0.5, 0, 0, 0.5, 0], [0, 0, 0, 0, 1.0]])
    expected = -(0.5 * chosen[0, 0, 3] + 0.5 * chosen[0, 3, 2] + chosen[1, 4, 6])
    assert packer.masked_lm_loss(logits, labels, num_items=2, weights=weights).item() == pytest.approx(
        expected.item() / 2
    )
