"""Isolation: the logits, loss and gradients of documents are the same packed and alone, whatever trains on them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import packer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

from tests.models import VOCABULARY, gradients, loss_sum, tiny_llama, train_alone  # noqa: E402  needs torch

# what SFTConfig sets by default
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")

MAX_LEN = 32
LENGTHS = [5, 20, 1, 70, 7, 3, 32, 9, 1, 2, 17, 28, 3, 13, 10]

SOURCES = ["no labels", "first token trained", "masked prompts"]
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A tokenized source, and the same packed."""

    pieces: dict[tuple[int, int], tuple[list[int], list[int]]]
    """(document, start): (tokens, labels) of what a row can hold of each document."""

    packed: Path
    """The folder of the rows."""

    rows: int
    """Rows in it."""


def make_source(kind: str, seed=0) -> dict[str, list[list[int]]]:
    random = np.random.default_rng(seed)
    tokens = [random.integers(1, VOCABULARY, length).tolist() for length in LENGTHS]
    if kind == "no labels":
        return {"input_ids": tokens}
    prompts = [0 if kind == "first token trained" else length // 2 for length in LENGTHS]
    labels = [[-100] * prompt + document[prompt:] for prompt, document in zip(prompts, tokens, strict=True)]
    return {"input_ids": tokens, "labels": labels}


def make_example(folder: Path, source: dict[str, list[list[int]]], **options) -> Example:
    out = folder / "packed"
    options = {"max_len": MAX_LEN, "position_ids": True, "sync": False, **options}
    manifest = packer.pack(datasets.Dataset.from_dict(source), out, **options)
    pieces = {}
    labels_of = source.get("labels", source["input_ids"])
    for number, (tokens, labels) in enumerate(zip(source["input_ids"], labels_of, strict=True)):
        for start in range(0, len(tokens), MAX_LEN):
            pieces[number, start] = (tokens[start : start + MAX_LEN], labels[start : start + MAX_LEN])
    return Example(pieces=pieces, packed=out, rows=manifest.packs)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """For models this small, threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=SOURCES)
def example(request, tmp_path_factory) -> Example:
    return make_example(tmp_path_factory.mktemp("source"), make_source(request.param))


@pytest.fixture
def any_example(tmp_path) -> Example:
    return make_example(tmp_path, make_source("first token trained"))


def assert_same_gradients(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert gradient.abs().max() > 100 * tolerance, f"{name}: nothing to compare"
        difference = (found[name] - gradient).abs().max()
        assert difference < tolerance, f"{name}: off by {difference}"


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
    batches = list(packer.batches(packer.load(example.packed), rows=rows, epoch=1))
    trained = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    model.zero_grad()
    total = 0.0
    for batch in batches:
        labels = batch.pop("labels")
        loss = loss_sum(model(**batch).logits, labels) / trained
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(alone.loss, abs=TOLERANCES[dtype])
    assert_same_gradients(gradients(model), alone.gradients, TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("attention", "dtype"), [("sdpa", torch.float32), ("sdpa", torch.float64), ("eager", torch.float32)]
)
def test_logits_are_those_of_the_document_alone(example, attention, dtype):
    model = tiny_llama(attention=attention, dtype=dtype)
    alone = train_alone(model, example.pieces)
    found = packed_logits(model, packer.load(example.packed))
    assert set(found) == set(alone.logits)
    assert largest_difference(found, alone.logits) < TOLERANCES[dtype]


def test_the_loss_that_the_model_computes_is_the_mean_of_the_documents(example):
    model = tiny_llama()
    alone = train_alone(model, example.pieces)
    (batch,) = packer.batches(packer.load(example.packed), rows=example.rows)
    assert model(**batch).loss.item() == pytest.approx(alone.loss, abs=1e-5)


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


def test_an_attention_mask_would_let_documents_leak(any_example):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    (batch,) = packer.batches(packer.load(any_example.packed), rows=any_example.rows)
    loss = model(**batch, attention_mask=torch.ones_like(batch["input_ids"])).loss
    assert abs(loss.item() - alone.loss) > 0.01


def test_first_tokens_with_labels_would_train_across_boundaries(any_example):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    (batch,) = packer.batches(packer.load(any_example.packed), rows=any_example.rows)
    batch["labels"] = batch["input_ids"].clone()
    assert abs(model(**batch).loss.item() - alone.loss) > 0.01


# ---- trainers ----


class GradientRecorder(transformers.TrainerCallback):
    """Keeps the gradients with which the optimizer is about to step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients = gradients(model)


def one_step(batch_size: int, rows: int) -> dict[str, object]:
    """Arguments of a trainer for one optimizer step on all rows; its gradients are not clipped."""
    return {
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": -(-rows // batch_size),
        "max_steps": 1,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }


def train_step(trainer):
    """(loss, gradients) of the one step that a trainer makes; the loss is also the one that it logs."""
    recorder = GradientRecorder()
    trainer.add_callback(recorder)
    loss = trainer.train().training_loss
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, abs=1e-4)
    return loss, recorder.gradients


def hf_trainer(model, example, folder, *, batch_size, remove=()):
    """The Trainer as one uses it on any dataset of fixed rows: nothing of packer but the files."""
    rows = datasets.load_from_disk(str(example.packed)).remove_columns(list(remove))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_eval_batch_size=example.rows, **one_step(batch_size, example.rows)
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_trainer_reading_the_shards_itself_trains_as_on_documents_alone(example, tmp_path, attention, batch_size):
    model = tiny_llama(attention=attention)
    alone = train_alone(model, example.pieces)
    loss, found = train_step(hf_trainer(model, example, tmp_path, batch_size=batch_size))
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(found, alone.gradients, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_trainer_with_collate_trains_as_on_documents_alone(example, tmp_path, batch_size):
    model = tiny_llama()
    alone = train_alone(model, example.pieces)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), remove_unused_columns=False, **one_step(batch_size, example.rows)
    )
    rows = packer.load(example.packed)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, data_collator=packer.collate)
    loss, found = train_step(trainer)
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(found, alone.gradients, 1e-5)


@pytest.mark.slow
def test_the_trainer_without_position_ids_leaks(any_example, tmp_path):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    loss, _ = train_step(hf_trainer(model, any_example, tmp_path, batch_size=2, remove=["position_ids"]))
    assert abs(loss - alone.loss) > 0.01


@pytest.mark.slow
def test_the_trainer_on_rows_without_labels_has_no_loss_to_train_on(tmp_path):
    example = make_example(tmp_path, make_source("no labels"), labels=False)
    with pytest.raises(ValueError, match="did not return a loss"):
        hf_trainer(tiny_llama(), example, tmp_path, batch_size=1).train()


def tiny_tokenizer():
    """A tokenizer that no text ever meets: SFTTrainer wants one for its padding token."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"token{number}": number for number in range(VOCABULARY)}
    word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="token1"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="token0", eos_token="token2")


def sft_trainer(model, example, folder, *, batch_size, **changes):
    """SFTTrainer on the shards: `packing` makes it heed seq_lengths, `skip_prepare_dataset` take the rows as is."""
    trl = pytest.importorskip("trl")
    options = {"packing": True, "max_length": MAX_LEN, "dataset_kwargs": {"skip_prepare_dataset": True}, **changes}
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        bf16=False,
        per_device_eval_batch_size=example.rows,
        **options,
        **one_step(batch_size, example.rows),
    )
    rows = datasets.load_from_disk(str(example.packed))
    return trl.SFTTrainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows, processing_class=tiny_tokenizer()
    )


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_sft_trainer_trains_as_on_documents_alone(example, tmp_path, attention, batch_size):
    model = tiny_llama(attention=attention)
    alone = train_alone(model, example.pieces)
    loss, found = train_step(sft_trainer(model, example, tmp_path, batch_size=batch_size))
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(found, alone.gradients, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
@pytest.mark.parametrize("options", [{"pad_id": 77}, {"max_segments": 1}])
def test_padding_does_not_matter_to_trainers(tmp_path, make_trainer, options):
    example = make_example(tmp_path, make_source("first token trained"), **options)
    assert "max_segments" not in options or example.rows == len(example.pieces), "a document a row, the rest padding"
    model = tiny_llama()
    alone = train_alone(model, example.pieces)
    loss, found = train_step(make_trainer(model, example, tmp_path, batch_size=2))
    assert loss == pytest.approx(alone.loss, abs=1e-5)
    assert_same_gradients(found, alone.gradients, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make_trainer", [hf_trainer, sft_trainer])
def test_the_evaluation_loss_of_a_batch_is_the_mean_of_the_documents(example, tmp_path, make_trainer):
    model = tiny_llama()
    alone = train_alone(model, example.pieces)
    found = make_trainer(model, example, tmp_path, batch_size=1).evaluate()
    assert found["eval_loss"] == pytest.approx(alone.loss, abs=1e-5)


@pytest.mark.slow
def test_sft_trainer_without_packing_leaks(any_example, tmp_path):
    model = tiny_llama()
    alone = train_alone(model, any_example.pieces)
    loss, _ = train_step(sft_trainer(model, any_example, tmp_path, batch_size=2, packing=False))
    assert abs(loss - alone.loss) > 0.01


@pytest.mark.slow
def test_sft_trainer_refuses_to_pack_rows_again(any_example, tmp_path):
    with pytest.raises(TypeError, match="Packing requires all columns to be lists"):
        sft_trainer(tiny_llama(), any_example, tmp_path, batch_size=2, dataset_kwargs={})


@pytest.mark.slow
def test_sft_trainer_on_rows_without_labels_trains_on_padding(tmp_path):
    """Why `--no-labels` is only for packer.load."""
    example = make_example(tmp_path, make_source("no labels"), labels=False)
    model = tiny_llama()
    alone = train_alone(model, example.pieces)
    loss, _ = train_step(sft_trainer(model, example, tmp_path, batch_size=2))
    assert abs(loss - alone.loss) > 0.001
