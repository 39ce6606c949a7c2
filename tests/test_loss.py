"""The loss of packed rows is that of the unpacked batch: per token and per document, over all ranks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packer
from packer import PackerError
from packer.column_names import NO_LOSS, PADDING
from tests.helpers import naive
from tests.helpers.order import sampler_at
from tests.helpers.packed_rows import make
from tests.helpers.torch_jobs import run_two
from tests.helpers.writing import write_ipc

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.helpers.models import VOCABULARY, gradients, loss_sum, tiny_llama  # noqa: E402  needs torch
from tests.helpers.weighted_steps import assert_steps_as_alone, document_weights  # noqa: E402

MAX_LEN = 32
LENGTHS = [5, 20, 1, 70, 7, 3, 32, 9, 1, 2, 17, 28, 3, 13, 10]
MASKED = 7  # a document without a trained token


@pytest.fixture(scope="module")
def documents():
    """(tokens, labels) of every document: prompts are masked, and all of one document is."""
    random = np.random.default_rng(0)
    tokens = [random.integers(1, VOCABULARY, length).tolist() for length in LENGTHS]
    prompts = [len(one) if number == MASKED else len(one) // 3 for number, one in enumerate(tokens)]
    return [(one, [NO_LOSS] * prompt + one[prompt:]) for one, prompt in zip(tokens, prompts, strict=True)]


@pytest.fixture(scope="module")
def packed(documents, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("loss")
    columns = dict(zip(("input_ids", "labels"), map(list, zip(*documents, strict=True)), strict=True))
    table = pa.table({name: pa.array(values, pa.list_(pa.int32())) for name, values in columns.items()})
    write_ipc(folder / "source.arrow", table)
    packer.pack(folder / "source.arrow", folder / "packed", max_len=MAX_LEN, sync=False)
    return folder / "packed"


def batches_of_pieces(dataset, *, rows):
    """The batch of every piece, by its document and first token."""
    batches = packer.batches(dataset, rows=rows, keep=["doc_starts"], tensors="numpy")
    pieces = [(number, batch["segments"]) for number, batch in enumerate(batches)]
    return {
        place: number
        for number, found in pieces
        for place in zip(found["doc_ids"].tolist(), found["doc_starts"].tolist(), strict=True)
    }


def train_unpacked(model, documents, *, per, batch_of=None):
    """(loss, gradients) of the pieces of all documents, each run by itself, and averaged as `per` says.

    Pieces of a document in different batches (`batch_of`) count as documents.
    """
    sums, counts = {}, {}
    for number, (tokens, labels) in enumerate(documents):
        for start in range(0, len(tokens), MAX_LEN):
            name = "all" if per == "token" else (number, batch_of[number, start] if batch_of else 0)
            piece = torch.tensor([tokens[start : start + MAX_LEN]]), torch.tensor([labels[start : start + MAX_LEN]])
            logits = model(input_ids=piece[0], use_cache=False).logits
            sums[name] = sums.get(name, 0) + loss_sum(logits, piece[1])
            counts[name] = counts.get(name, 0) + int((piece[1][:, 1:] != NO_LOSS).sum())
    means = [sums[name] / counts[name] for name in sums if counts[name]]
    loss = torch.stack(means).mean()
    model.zero_grad()
    loss.backward()
    return loss.item(), gradients(model)


def train_packed(model, batches):
    """(loss, gradients) of one optimizer step over these batches."""
    items = packer.num_items_in_batch(batches)
    model.zero_grad()
    total = 0.0
    for batch in batches:
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "loss_weights")}
        logits = model(**inputs).logits
        loss = packer.causal_lm_loss(logits, batch["labels"], num_items=items, weights=batch.get("loss_weights"))
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], abs=1e-10)
    for name, gradient in expected[1].items():
        assert gradient.abs().max() > 1e-6, f"{name}: nothing to compare"
        assert (found[1][name] - gradient).abs().max() < 1e-10, name


@pytest.mark.parametrize("format", ["hf", "hf_rows"])
@pytest.mark.parametrize(("per", "rows"), [("token", 1), ("token", 3), ("document", 3), ("document", 9)])
def test_loss_and_gradients_equal_the_unpacked_batch(documents, packed, format, per, rows):
    model = tiny_llama(dtype=torch.float64)
    dataset = packer.load(packed)
    assert len(dataset) == 7, "batches of 3 are of different sizes; one of 9 holds all pieces of a document"
    batches = list(packer.batches(dataset, rows=rows, format=format, loss_weights=per))
    batch_of = batches_of_pieces(dataset, rows=rows)
    assert_same(train_packed(model, batches), train_unpacked(model, documents, per=per, batch_of=batch_of))


def test_static_batches_and_batches_of_no_rows_change_nothing(documents, packed):
    model = tiny_llama(dtype=torch.float64)
    dataset = packer.load(packed)
    static = packer.static_shape(dataset, rows=9)
    batches = list(packer.batches(dataset, rows=9, loss_weights="document", static=static))
    batches.append(packer.collate(dataset.__getitems__([]), loss_weights="document"))
    assert_same(train_packed(model, batches), train_unpacked(model, documents, per="document"))


def test_the_means_are_not_the_same(documents):
    model = tiny_llama(dtype=torch.float64)
    token, document = (train_unpacked(model, documents, per=per)[0] for per in ("token", "document"))
    assert abs(token - document) > 1e-3


def test_hugging_face_models_take_the_number_of_items(documents, packed):
    model = tiny_llama()
    batches = list(packer.batches(packer.load(packed), rows=3))
    items = packer.num_items_in_batch(batches)
    losses = [model(**batch, num_items_in_batch=items).loss.item() for batch in batches]
    assert sum(losses) == pytest.approx(train_unpacked(model, documents, per="token")[0], abs=1e-5)


def test_items_are_trained_tokens_or_documents_whatever_the_format(documents, packed):
    dataset = packer.load(packed)
    pieces = [
        labels[start : start + MAX_LEN][1:] for _, labels in documents for start in range(0, len(labels), MAX_LEN)
    ]
    trained = sum(label != NO_LOSS for piece in pieces for label in piece)
    for format in ("hf", "hf_rows", "torchtitan", "megatron"):
        batches = list(packer.batches(dataset, rows=3, format=format))
        assert packer.num_items_in_batch(batches) == trained
    count = sum(any(label != NO_LOSS for label in labels[1:]) for _, labels in documents)
    for format in ("hf", "hf_rows", "megatron"):
        batches = list(packer.batches(dataset, rows=9, format=format, loss_weights="document"))
        assert packer.num_items_in_batch(batches) == pytest.approx(count)


row_segments = st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda lengths: sum(lengths) <= 8)


@given(st.lists(row_segments, min_size=1, max_size=4), st.data())
def test_weights_equal_the_naive_ones_in_every_format(lengths, data):
    rows = []
    for segments in lengths:
        tail = 8 - sum(segments)
        labels = data.draw(st.lists(st.sampled_from([NO_LOSS, 5]), min_size=8, max_size=8))
        labels = [NO_LOSS if hide == NO_LOSS else label for hide, label in zip(
            naive.masked_labels([[0] * 8], [segments])[0], labels, strict=True
        )]  # fmt: skip
        documents = [data.draw(st.integers(0, 2)) for _ in segments] + [PADDING] * (tail > 0)
        rows.append(
            {
                "input_ids": [1] * 8,
                "labels": labels,
                "seq_lengths": segments + [tail] * (tail > 0),
                "doc_ids": documents,
            }
        )
    arrays = [{name: np.array(values, np.int64) for name, values in row.items()} for row in rows]
    expected, count = naive.loss_weights(rows)
    found = {
        name: packer.collate(arrays, format=name, loss_weights="document", tensors="numpy")
        for name in ("hf", "hf_rows", "megatron")
    }
    assert found["hf"]["loss_weights"].tolist() == [expected]
    assert found["hf"]["loss_weights"].sum() == pytest.approx(count)
    for name, batch in found.items():
        trained = batch["labels"] != NO_LOSS
        assert batch["loss_weights"].shape == batch["labels"].shape
        assert (batch["loss_weights"] > 0).tolist() == trained.tolist(), "aligned with the labels"
        if name != "hf":
            assert batch["loss_weights"][trained].tolist() == [weight for weight in expected if weight]


# ---- two ranks ----


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("per", ["token", "document"])
def test_two_ranks_with_different_numbers_of_tokens_make_the_step_of_one(two_ranks, documents, packed, per):
    found = [torch.load(two_ranks / f"{per}-{rank}.pt") for rank in range(2)]
    assert found[0]["own_items"] != found[1]["own_items"]
    assert found[0]["items"] == found[1]["items"] == pytest.approx(sum(one["own_items"] for one in found))
    expected = train_unpacked(tiny_llama(dtype=torch.float64), documents, per=per)
    for one in found:
        assert_same((sum(other["loss"] for other in found), one["gradients"]), expected)


def test_the_trainer_divides_by_the_weights_of_all_ranks_and_batches(two_ranks, documents):
    starts = [(number, start) for number, (one, _) in enumerate(documents) for start in range(0, len(one), MAX_LEN)]
    pieces = {(doc, at): tuple(each[at : at + MAX_LEN] for each in documents[doc]) for doc, at in starts}
    ranks = [torch.load(two_ranks / f"hf-document-2-{rank}.pt") for rank in range(2)]
    assert [len(step) for step in ranks[0][2]] == [2, 2]
    assert_steps_as_alone(ranks, pieces, document_weights(pieces))


def tokens_of_rank(dataset, rank, *, epochs):
    """Tokens of the batches of one of two ranks, read without any loader."""
    options = {"global_batch": 4, "rows": 2, "rank": rank, "world_size": 2}
    return [
        [
            packer.collate(dataset.__getitems__(numbers))["input_ids"].tolist()
            for numbers in sampler_at(epoch, dataset, **options)
        ]
        for epoch in epochs
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_trainer_on_two_ranks_resumes_in_the_epoch_that_it_left(two_ranks, packed, rank):
    epochs = tokens_of_rank(packer.load(packed), rank, epochs=range(3))
    expected = [batch for epoch in epochs for batch in epoch]
    whole, resumed = torch.load(two_ranks / f"trainer-{rank}.pt")
    assert whole == expected
    assert len(expected) // 3 == 2, "one batch a step"
    assert resumed == expected[3:]


@pytest.fixture(scope="module")
def two_ranks(packed, tmp_path_factory) -> Path:
    """Folder of what two processes left that trained together; see tests/helpers/two_ranks.py."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("ranks")
    run_two("tests.helpers.two_ranks", folder, packed)
    return folder


# ---- the packing factor ----


def test_the_schedule_keeps_the_documents_of_a_step_or_raises_betas(packed):
    dataset = packer.load(packed)
    factor = len(LENGTHS) / len(dataset)
    keep = packer.packed_schedule(dataset, batch_size=4, epochs=3)
    assert keep.packing_factor == factor == 15 / 7
    assert keep.global_batch == 2
    assert keep.documents_per_step == 2 * factor
    assert keep.steps == 3 * 4
    assert keep.betas == pytest.approx((0.9 ** (factor / 2), 0.999 ** (factor / 2)))
    rows = packer.packed_schedule(dataset, batch_size=4, global_batch=4, betas=(0.9, 0.98))
    assert rows.betas == pytest.approx((0.9**factor, 0.98**factor))
    assert (rows.global_batch, rows.steps) == (4, 2)
    assert packer.packed_schedule(dataset, batch_size=1).global_batch == 1
    steps = packer.BatchSampler(dataset, global_batch=keep.global_batch).steps
    assert steps * 3 == keep.steps


def test_the_schedule_does_not_count_documents_that_were_left_out(tmp_path):
    dataset = packer.load(make(tmp_path, [0, 8, 8, 99, 0, 8], long="drop"))
    assert packer.packed_schedule(dataset, batch_size=1).packing_factor == 3 / len(dataset)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"batch_size": 1, "global_batch": 0}, "global_batch is 0: it must be at least 1"),
        ({"batch_size": 1, "epochs": 0}, "epochs is 0: it must be at least 1"),
        ({"batch_size": 1, "betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\): they must be at least 0 and below 1"),
    ],
)
def test_a_schedule_of_nothing_is_refused(packed, options, message):
    with pytest.raises(PackerError, match=message):
        packer.packed_schedule(packer.load(packed), **options)
