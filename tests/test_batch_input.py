"""What batches are made of: arrays, lists and tensors make the same batch, anything else a clear error."""

import warnings

import numpy as np
import pyarrow as pa
import pytest

import packer
from packer import PackerError
from packer.column_names import NO_LOSS
from packer.loader.batch_formats import FORMATS
from tests.helpers.formats import lists
from tests.helpers.packed_rows import LENGTHS, tokens_of

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")

MLM = packer.MaskedLM(mask_id=1, vocab_size=20_000, special_ids=[0])


# ---- rows ----


@pytest.fixture(scope="module")
def with_kept_columns(tmp_path_factory):
    """A packed dataset whose documents have a number, a text and a list each."""
    columns = {
        "input_ids": pa.array([tokens_of(*each) for each in enumerate(LENGTHS)], pa.list_(pa.int32())),
        "score": pa.array([number / 4 for number in range(len(LENGTHS))]),
        "name": pa.array([f"document {number}" for number in range(len(LENGTHS))]),
        "pair": pa.array([[number, number + 1] for number in range(len(LENGTHS))]),
    }
    out = tmp_path_factory.mktemp("kept") / "packed"
    packer.pack(datasets.Dataset(pa.table(columns)), out, max_len=12, keep=["score", "name", "pair"], sync=False)
    return out


@pytest.mark.parametrize("kind", [None, "torch", "numpy"])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_lists_and_of_tensors_make_the_batch_of_arrays(packed, dataset, format, kind):
    read = datasets.load_from_disk(str(packed)).with_format(kind)
    found = packer.collate([read[number] for number in (0, 3, 1)], format=format)
    assert lists(found) == lists(packer.collate(dataset.__getitems__([0, 3, 1]), format=format))


@pytest.mark.parametrize("options", [{}, {"mlm": MLM}, {"loss_weights": "document"}])
@pytest.mark.parametrize("kind", [None, "torch"])
def test_rows_of_lists_and_of_tensors_have_their_kept_columns(with_kept_columns, kind, options):
    options = {"keep": ["score", "name", "pair"], "tensors": "numpy", **options}
    read = datasets.load_from_disk(str(with_kept_columns)).with_format(kind)
    found = packer.collate([read[0], read[1]], **options)
    expected = packer.collate(packer.load(with_kept_columns).__getitems__([0, 1]), **options)
    pairs = [[list(pair) for pair in batch["segments"].pop("pair")] for batch in (found, expected)]
    assert pairs[0] == pairs[1]
    assert lists(found) == lists(expected)


def test_kept_text_stays_an_array_where_tensors_are_asked_for(with_kept_columns):
    rows = packer.load(with_kept_columns).__getitems__([0, 1])
    segments = packer.collate(rows, keep=["score", "name"])["segments"]
    assert torch.is_tensor(segments["score"])
    assert segments["name"].tolist() == [f"document {number}" for number in segments["doc_ids"].tolist()]


FIRST, SECOND = "row 0 of the batch has", "row 1 of the batch has"
INTEGERS, ALL_OR_NONE = "pass a list of integers", "pass labels for all of them or none"
LOAD = "pass rows of packer.load; in the Hugging Face Trainer, take its arguments from packer.trainers.hf"


def without(row, name):
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [], "there are 0 rows: a batch needs at least 1"),
        (lambda rows: rows[0], "the batch is one mapping with the keys input_ids, labels, "),
        (lambda rows: [rows[0], rows[1]["doc_ids"]], "row 1 of the batch is of type ndarray: pass rows of packer.load"),
        (
            lambda rows: [{"input_ids": [5], "labels": [5]}],
            f"{FIRST} no column seq_lengths, only input_ids, labels: {LOAD}",
        ),
        (lambda rows: [rows[0], without(rows[1], "doc_ids")], f"{SECOND} no column doc_ids, only "),
        (lambda rows: [rows[0], without(rows[1], "labels")], f"{SECOND} no labels, row 0 has some: {ALL_OR_NONE}"),
        (lambda rows: [without(rows[0], "labels"), rows[1]], f"{SECOND} labels, row 0 has none: {ALL_OR_NONE}"),
        (
            lambda rows: [rows[0] | {"input_ids": rows[0]["input_ids"][None]}],
            f"{FIRST} input_ids of shape [1, 12]: pass it in one dimension, as values[0]",
        ),
        (lambda rows: [rows[0] | {"seq_lengths": [4.5, 7.5]}], f"{FIRST} seq_lengths of type float64: {INTEGERS}"),
        (lambda rows: [rows[0] | {"labels": [[1], [2, 3]]}], f"{FIRST} labels of type object: {INTEGERS}"),
        (
            lambda rows: [rows[0] | {"labels": torch.zeros(12, dtype=torch.bfloat16)}],
            f"{FIRST} labels that NumPy cannot read",
        ),
    ],
)
@pytest.mark.parametrize("format", ["hf", "trl"])
def test_rows_that_are_none_are_refused_in_one_line(dataset, format, change, message):
    with pytest.raises(PackerError) as raised:
        packer.collate(change([dataset[0], dataset[1]]), format=format)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


# ---- raw examples ----


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (
            [{"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([[5, 6, 7]])}],
            "example 0 of the batch has input_ids of shape [1, 3]: pass it in one dimension, as values[0]",
        ),
        (
            [{"input_ids": [5, 6], "labels": [[5, 6]]}],
            "example 0 of the batch has labels of shape [1, 2]: pass it in one dimension, as values[0]",
        ),
        (
            [{"input_ids": [5, 6]}, {"input_ids": [[5, 6], [7, 8]]}],
            f"example 1 of the batch has input_ids of shape [2, 2]: {INTEGERS}",
        ),
        (
            [{"input_ids": [5]}, {"input_ids": [6]}, {"input_ids": [7, 8], "labels": [7, 8]}],
            f"example 2 of the batch has labels, example 0 has none: {ALL_OR_NONE}",
        ),
        (
            [{"input_ids": [5, 6], "labels": None}],
            "example 0 of the batch has labels None: pass one per token, or leave the key out of all examples",
        ),
        ([{"input_ids": [5], "labels": [None]}], f"example 0 of the batch has labels of type object: {INTEGERS}"),
        ([{"input_ids": ["5", "6"]}], f"example 0 of the batch has input_ids of type object: {INTEGERS}"),
        ([{"input_ids": 5}], f"example 0 of the batch has input_ids of shape []: {INTEGERS}"),
        (
            [{"input_ids": [5]}, {"text": "one", "id": 3}],
            "example 1 of the batch has no input_ids, only text, id: pass mappings with input_ids",
        ),
        ([[5, 6]], "example 0 of the batch is of type list: pass mappings with input_ids"),
    ],
)
def test_examples_that_are_no_lists_of_integers_are_refused(examples, message):
    with pytest.raises(PackerError) as raised:
        packer.flatten(examples)
    assert str(raised.value) == message


# ---- batches that train nothing ----

NOTHING = "no token of a batch is trained, so the loss of a Hugging Face model, which is a mean, is NaN: pass"


@pytest.mark.parametrize("format", ["hf", "hf_rows"])
def test_a_batch_of_rows_that_trains_nothing_is_said(dataset, format):
    row = dict(dataset[0]) | {"labels": np.full(12, NO_LOSS, np.int32)}
    with pytest.warns(UserWarning, match=NOTHING):
        packer.collate([row, row], format=format)
    with pytest.warns(UserWarning, match=NOTHING):
        packer.collate(dataset.__getitems__([]), format=format)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packer.collate([row, dataset[1]], format=format)


def test_a_batch_of_examples_that_trains_nothing_is_said():
    with pytest.warns(UserWarning, match=NOTHING):
        packer.flatten([{"input_ids": [5]}] * 3)
    with pytest.warns(UserWarning, match=NOTHING):
        packer.flatten([{"input_ids": [5, 6], "labels": [5, NO_LOSS]}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packer.flatten([{"input_ids": [5]}, {"input_ids": [5, 6]}])


@pytest.mark.filterwarnings("ignore:no token of a batch is trained")
def test_a_step_that_trains_nothing_has_a_loss_of_zero(dataset):
    pytest.importorskip("transformers")
    from tests.helpers.models import gradients, tiny_llama

    row = dict(dataset[0]) | {"input_ids": np.arange(12), "labels": np.full(12, NO_LOSS)}
    batches = [packer.collate([row]), packer.collate([row])]
    items = packer.num_items_in_batch(batches)
    model = tiny_llama()
    for batch in batches:
        losses = [
            model(**batch, num_items_in_batch=items).loss,
            packer.causal_lm_loss(model(**batch).logits, batch["labels"], num_items=items),
        ]
        for loss in losses:
            assert loss.item() == 0
            loss.backward()
    assert not any(gradient.any() for gradient in gradients(model).values())
    weighted = [packer.collate([row], loss_weights="document")]
    assert packer.num_items_in_batch(weighted) == 1


def test_context_parallelism_of_accelerate_which_ignores_boundaries_is_refused(dataset):
    accelerate = pytest.importorskip("accelerate")
    state = pytest.importorskip("accelerate.state").AcceleratorState
    state._reset_state(reset_partial_state=True)  # A Trainer of a test before this one leaves its state in the process.
    try:
        state(
            cpu=True,
            dynamo_plugin=accelerate.utils.TorchDynamoPlugin(),
            parallelism_config=accelerate.ParallelismConfig(cp_size=2),
            _from_accelerator=True,
        )
        with pytest.raises(PackerError, match="among cp_size=2 processes, and its attention ignores the boundaries"):
            packer.collate([dataset[0]])
    finally:
        state._reset_state(reset_partial_state=True)
    assert packer.collate([dataset[0]])["labels"].shape[0] == 1
