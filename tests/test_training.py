"""Isolation: the logits, loss and gradients of documents are the same packed and alone, whatever trains on them."""

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import partial
from math import inf
from pathlib import Path

import pytest

import packer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

from examples import plain_loop  # noqa: E402  these need torch
from tests.helpers.documents import SOURCES, Example, assert_same_gradients, make_example, make_source  # noqa: E402
from tests.helpers.models import FLASH, VOCABULARY, recorded_gradients, tiny_llama, tiny_tokenizer, train_alone  # noqa: E402
from tests.helpers.naive_attention import flash_attn_installed  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("no_gpu"),
    # what SFTConfig sets by default
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
]

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(scope="module", params=SOURCES)
def example(request, tmp_path_factory) -> Example:
    return make_example(tmp_path_factory.mktemp("source"), make_source(request.param))


@pytest.fixture(
    scope="module", params=[SOURCES[-1], *(pytest.param(s, marks=pytest.mark.nightly) for s in SOURCES[:-1])]
)
def trained(request, tmp_path_factory) -> Example:
    """An example for trainers, of which one in CI is enough."""
    return make_example(tmp_path_factory.mktemp("source"), make_source(request.param))


@pytest.fixture
def any_example(tmp_path) -> Example:
    return make_example(tmp_path, make_source("first token trained"))


def largest_difference(found, expected) -> float:
    return max((found[name] - expected[name]).abs().max().item() for name in expected)


def packed_logits(model, dataset, **changes):
    """Logits of every segment of every row, by (document, start), each row a batch of its own."""
    logits = {}
    for row in dataset:
        batch = {**packer.collate([row]), **changes}
        output = model(**batch).logits[0].detach()
        bounds = batch["cu_seq_lens_q"].tolist()
        names = zip(row["doc_ids"].tolist(), row["doc_starts"].tolist(), bounds, bounds[1:], strict=False)
        logits |= {(document, start): output[first:last] for document, start, first, last in names}
    return logits


def test_the_example_is_worth_training_on(example):
    rows = list(packer.load(example.packed))
    assert example.rows > 4
    assert any(row["doc_ids"][-1] == -1 for row in rows), "padding"
    assert max(len(row["doc_ids"]) for row in rows) > 2, "several documents in a row"
    assert {start for _, start in example.pieces} == {0, 32, 64}, "a document that was split"


# ---- a loop of one's own ----


@pytest.mark.parametrize(
    ("attention", "dtype"),
    # eager attention takes its softmax in float32
    [("sdpa", torch.float32), ("sdpa", torch.float64), ("eager", torch.float32)],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_plain_loop_trains_as_on_documents_alone(example, attention, dtype, rows):
    model = tiny_llama(attention=attention, dtype=dtype)
    alone = train_alone(model, example.pieces)
    with recorded_gradients(model) as recorded:
        one_step = rows * -(-example.rows // rows)
        steps = plain_loop.train(model, example.packed, rows=rows, global_batch=one_step, max_grad_norm=inf)
        ((loss, _),) = steps
    assert loss == pytest.approx(alone.loss, abs=TOLERANCES[dtype])
    assert_same_gradients(recorded[0], alone.gradients, TOLERANCES[dtype])


def test_changing_a_document_changes_no_other(tmp_path):
    model = tiny_llama()
    source = make_source("no labels")
    before = packed_logits(model, packer.load(make_example(tmp_path / "before", source).packed))
    changed = 4
    source["input_ids"][changed] = [1 + token % (VOCABULARY - 1) for token in source["input_ids"][changed]]
    after_rows = packer.load(make_example(tmp_path / "after", source).packed)
    assert any(changed in row["doc_ids"] and len(row["doc_ids"]) > 2 for row in after_rows), "it has neighbours"
    after = packed_logits(model, after_rows)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {(changed, 0)}


# ---- what the tests above would notice ----


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"use_cache": True}, id="use_cache"),
        pytest.param({"use_cache": None}, id="use_cache by default"),
        pytest.param({"position_ids": None}, id="no position_ids"),
    ],
)
def test_documents_leak_into_each_other(any_example, changes):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    found = packed_logits(model, packer.load(any_example.packed), **changes)
    assert largest_difference(found, alone.logits) > 0.1


@pytest.mark.parametrize("name", ["attention_mask", "labels"])
def test_a_mask_of_ones_or_labels_of_first_tokens_would_train_across_boundaries(any_example, name):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    (batch,) = packer.batches(packer.load(any_example.packed), rows=any_example.rows)
    batch[name] = torch.ones_like(batch["input_ids"]) if name == "attention_mask" else batch["input_ids"].clone()
    assert abs(model(**batch).loss.item() - alone.loss) > 0.001


# ---- trainers ----


def train_step(trainer):
    """(loss, gradients) of the one step that a trainer makes; the loss is also the one that it logs."""
    with recorded_gradients(trainer.model) as recorded:
        loss = trainer.train().training_loss
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, abs=1e-4)
    (found,) = recorded
    return loss, found


def one_step(example, folder, batch_size: int) -> dict[str, object]:
    """Arguments of a trainer for one optimizer step on all rows; its gradients are not clipped."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": -(-example.rows // batch_size),
        "num_train_epochs": 1,
        "max_grad_norm": inf,
        "logging_steps": 1,
        "report_to": [],
    }


def reading_trainer(model, example, folder, *, batch_size, remove=()):
    """The Trainer as one uses it on any dataset of fixed rows: nothing of packer but the files."""
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(**one_step(example, folder, batch_size))
    rows = datasets.load_from_disk(str(example.packed)).remove_columns(list(remove))
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows)


def collating_trainer(model, example, folder, *, batch_size):
    """The Trainer with packer's dataset, collator and arguments."""
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(**one_step(example, folder, batch_size))
    return transformers.Trainer(model, **packer.trainers.hf(example.packed, arguments, eval=example.packed))


def sft_trainer(model, example, folder, *, batch_size):
    """SFTTrainer in the same way."""
    trl = pytest.importorskip("trl")
    arguments = trl.SFTConfig(**one_step(example, folder, batch_size), bf16=False)
    found = packer.trainers.trl(example.packed, arguments, eval=example.packed)
    return trl.SFTTrainer(model, processing_class=tiny_tokenizer(), **found)


def reading_sft_trainer(model, example, folder, *, batch_size, **changes):
    """SFTTrainer with nothing of packer but the files."""
    trl = pytest.importorskip("trl")
    options = {"packing": True, "max_length": 32, "dataset_kwargs": {"skip_prepare_dataset": True}, **changes}
    arguments = trl.SFTConfig(**one_step(example, folder, batch_size), **options, bf16=False)
    rows = datasets.load_from_disk(str(example.packed))
    return trl.SFTTrainer(model, args=arguments, train_dataset=rows, processing_class=tiny_tokenizer())


def reading_sft_trainer_that_prepares(*args, **options):
    """SFTTrainer with packing on, and its preparation of the data, too."""
    return reading_sft_trainer(*args, **options, dataset_kwargs=None)


def assert_trains_as_alone(make_trainer, example, folder, *, attention="sdpa", batch_size):
    alone = train_alone(tiny_llama(), example.pieces)
    loss, found = train_step(make_trainer(tiny_llama(attention=attention), example, folder, batch_size=batch_size))
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(found, alone.gradients, 1e-5)


def assert_leaks(make_trainer, example, folder, **changes):
    model = tiny_llama()
    alone = train_alone(model, example.pieces)
    loss, _ = train_step(make_trainer(model, example, folder, batch_size=2, **changes))
    assert abs(loss - alone.loss) > 0.001


TRAINED = [
    ("sdpa", 2),
    *(pytest.param(*each, marks=pytest.mark.nightly) for each in [("sdpa", 1), ("eager", 1), ("eager", 2)]),
]
"""Attention and rows of a batch, of which one is enough to see that a trainer keeps documents apart."""

READING_AND_SFT = [reading_trainer, pytest.param(sft_trainer, marks=pytest.mark.nightly)]


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "batch_size"), TRAINED)
def test_the_trainer_reading_the_shards_itself_trains_as_on_documents_alone(trained, tmp_path, attention, batch_size):
    assert_trains_as_alone(reading_trainer, trained, tmp_path, attention=attention, batch_size=batch_size)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_the_trainer_with_packer_trains_as_on_documents_alone(trained, tmp_path, batch_size):
    assert_trains_as_alone(collating_trainer, trained, tmp_path, batch_size=batch_size)


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "batch_size"), TRAINED)
def test_sft_trainer_trains_as_on_documents_alone(trained, tmp_path, attention, batch_size):
    assert_trains_as_alone(sft_trainer, trained, tmp_path, attention=attention, batch_size=batch_size)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("patched", [False, True])
def test_patched_trl_keeps_packed_rows_which_it_otherwise_packs_again(any_example, tmp_path, monkeypatch, patched):
    """docs/how-to/trainers/trl-packed-rows.patch, applied to a copy of the module that it changes."""
    trl = pytest.importorskip("trl")
    original = Path(importlib.util.find_spec("trl.trainer.sft_trainer").origin)
    copied = tmp_path / "trl/trainer/sft_trainer.py"
    copied.parent.mkdir(parents=True)
    shutil.copy(original, copied)
    if patched:
        patch = Path(__file__).parent.parent / "docs/how-to/trainers/trl-packed-rows.patch"
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        subprocess.run(["git", "apply", "--include=trl/*", patch], cwd=tmp_path, env=environment, check=True)
    spec = importlib.util.spec_from_file_location("trl.trainer.copied_sft_trainer", copied)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(trl, "SFTTrainer", module.SFTTrainer)
    train = partial(assert_trains_as_alone, reading_sft_trainer_that_prepares, any_example, tmp_path, batch_size=2)
    if patched:
        train()
    else:
        with pytest.raises((TypeError, AssertionError)):
            train()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_trainer", "batch_size"), [(reading_trainer, 1), (collating_trainer, 2), (sft_trainer, 2)]
)
def test_trainers_with_flash_attention_train_as_on_documents_alone(any_example, tmp_path, make_trainer, batch_size):
    with flash_attn_installed() as calls:
        assert_trains_as_alone(make_trainer, any_example, tmp_path, attention=FLASH, batch_size=batch_size)
    assert calls


def test_static_batches_with_flash_attention_train_as_on_documents_alone(any_example):
    """flash-attn's kernels for ROCm write past a buffer if a segment is empty, as padding must not be."""
    alone = train_alone(tiny_llama(), any_example.pieces)
    dataset, total = packer.load(any_example.packed), 0.0
    batches = list(packer.batches(dataset, rows=2, static=packer.static_shape(dataset, rows=2)))
    items = packer.num_items_in_batch(batches)
    with flash_attn_installed() as calls:
        model = tiny_llama(attention=FLASH)
        for batch in batches:
            labels = batch.pop("labels")
            loss = packer.causal_lm_loss(model(**batch).logits, labels, num_items=items)
            loss.backward()
            total += loss.item()
    assert len(calls) % len(batches) == 0
    assert all((call[0].diff() > 0).all() for call in calls)
    assert total == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients({name: each.grad for name, each in model.named_parameters()}, alone.gradients, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make_trainer", READING_AND_SFT)
def test_padding_does_not_matter_to_trainers(tmp_path, make_trainer):
    example = make_example(tmp_path, make_source("first token trained"), pad_id=77, max_segments=1)
    assert example.rows == len(example.pieces), "a document a row, the rest padding"
    assert_trains_as_alone(make_trainer, example, tmp_path, batch_size=2)


@pytest.mark.slow
def test_the_trainer_without_position_ids_leaks(any_example, tmp_path):
    assert_leaks(reading_trainer, any_example, tmp_path, remove=["position_ids"])


@pytest.mark.nightly
@pytest.mark.slow
def test_sft_trainer_without_packing_leaks(any_example, tmp_path):
    assert_leaks(reading_sft_trainer, any_example, tmp_path, packing=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_sft_trainer_on_rows_without_labels_trains_on_padding(tmp_path):
    """Why `--no-labels` is only for packer.load."""
    assert_leaks(reading_sft_trainer, make_example(tmp_path, make_source("no labels"), labels=False), tmp_path)


@pytest.mark.slow
def test_the_trainer_on_rows_without_labels_has_no_loss_to_train_on(tmp_path):
    example = make_example(tmp_path, make_source("no labels"), labels=False)
    with pytest.raises(ValueError, match="did not return a loss"):
        reading_trainer(tiny_llama(), example, tmp_path, batch_size=1).train()


@pytest.mark.slow
@pytest.mark.parametrize("make_trainer", READING_AND_SFT)
def test_the_evaluation_loss_of_a_batch_is_the_mean_of_the_documents(any_example, tmp_path, make_trainer):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    trainer = make_trainer(model, any_example, tmp_path, batch_size=1)
    trainer.args.per_device_eval_batch_size = any_example.rows
    found = trainer.evaluate(trainer.eval_dataset or trainer.train_dataset)
    assert found["eval_loss"] == pytest.approx(alone.loss, abs=1e-5)
