"""Every example, run as a command: its first step has the loss and the gradient norm of the documents alone."""

import csv
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

import packer  # noqa: E402  these need torch
from tests.helpers import naive  # noqa: E402
from tests.helpers.documents import LENGTHS, make_example, make_source  # noqa: E402
from tests.helpers.models import tiny_llama, tiny_tokenizer, train_alone  # noqa: E402
from tests.helpers.weighted_steps import step_alone, token_weights, weighted_source  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_gpu"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
]

ROOT = Path(__file__).parent.parent
ROWS, GLOBAL_BATCH = 2, 8  # all rows in one step, the last batch smaller than the others


@pytest.fixture(scope="module")
def source():
    return make_source("first token trained")


@pytest.fixture(scope="module")
def example(source, tmp_path_factory):
    found = make_example(tmp_path_factory.mktemp("example"), source)
    assert GLOBAL_BATCH - ROWS < found.rows < GLOBAL_BATCH
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def alone(example):
    return train_alone(tiny_llama(), example.pieces)


def run(name: str, *arguments: object) -> str:
    """Run an example in this process; return what it printed."""
    done = CliRunner().invoke(import_module(f"examples.{name}").main, [str(each) for each in arguments])
    if done.exception:
        raise done.exception
    return done.output


def assert_first_step(loss: float, gradient_norm: float, alone) -> None:
    assert loss == pytest.approx(alone.loss, abs=1e-4)
    assert gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-4)


def printed(output: str, step: int = 1) -> tuple[float, float]:
    """(loss, gradient norm) of a step that was printed."""
    found = re.search(rf"step {step}: loss (\S+), gradient norm (\S+)$", output, re.MULTILINE)
    assert found, output
    return float(found[1]), float(found[2])


def logged(folder: Path) -> tuple[float, float]:
    """(loss, gradient norm) of the first step in a checkpoint of a Hugging Face trainer."""
    entry = json.loads((folder / "checkpoint-1" / "trainer_state.json").read_text())["log_history"][0]
    return entry["loss"], entry["grad_norm"]


def test_the_plain_loop(example, model, alone):
    output = run("plain_loop", example.packed, model, "--rows", ROWS, "--global-batch", GLOBAL_BATCH)
    assert_first_step(*printed(output), alone)


def test_flattening_needs_no_packing(source, model, tmp_path):
    """Documents are whole here: nothing is cut to a row's length."""
    pytest.importorskip("accelerate")
    whole = {(number, 0): piece for number, piece in enumerate(zip(source["input_ids"], source["labels"], strict=True))}
    datasets.Dataset.from_dict(source).save_to_disk(tmp_path / "source")
    run("flattening", tmp_path / "source", model, tmp_path / "out", "--documents", 4, "--accumulation", 4)
    assert len(LENGTHS) == 15, "the last batch is smaller"
    assert_first_step(*logged(tmp_path / "out"), train_alone(tiny_llama(), whole))


def test_lightning(example, model, alone, tmp_path):
    pytest.importorskip("lightning")
    run("lightning_trainer", example.packed, model, tmp_path, "--rows", ROWS, "--global-batch", GLOBAL_BATCH)
    (metrics,) = tmp_path.rglob("metrics.csv")
    first = next(csv.DictReader(metrics.open()))
    assert_first_step(float(first["loss"]), float(first["grad_norm"]), alone)


def test_lightning_with_weights(model, tmp_path):
    pytest.importorskip("lightning")
    source = weighted_source()
    example = make_example(tmp_path / "weighted", source)
    sizes = ("--rows", ROWS, "--global-batch", GLOBAL_BATCH)
    run("lightning_trainer", example.packed, model, tmp_path, *sizes, "--loss", "weight")
    (metrics,) = tmp_path.rglob("metrics.csv")
    first = next(csv.DictReader(metrics.open()))
    loss, gradients = step_alone(tiny_llama(), example.pieces, [list(example.pieces)], token_weights(source))
    assert float(first["loss"]) == pytest.approx(loss, abs=1e-4)
    norm = torch.stack([each.norm() for each in gradients.values()]).norm().item()
    assert float(first["grad_norm"]) == pytest.approx(norm, rel=1e-4)
    with pytest.raises(packer.PackerError, match="the rows have weights of the loss"):
        run("lightning_trainer", example.packed, model, tmp_path, *sizes)


def test_lightning_resumes_with_the_next_step_from_any_checkpoint(example, model, tmp_path):
    """Also from the end of an epoch, whose last step has fewer rows."""
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from transformers import AutoModelForCausalLM

    training = import_module("examples.lightning_trainer").PackedTraining
    steps = 4
    rows = len(packer.load(example.packed))
    global_batch = -(-rows // steps)

    def shown(resume=None):
        """Tokens of every step of two epochs, or of those after a checkpoint."""
        found = []

        class Recording(training):
            def training_step(self, step):
                found.append([batch["input_ids"].tolist() for batch in step])
                super().training_step(step)

        module = Recording(
            AutoModelForCausalLM.from_pretrained(model).float(), example.packed, rows=1, global_batch=global_batch
        )
        checkpoints = ModelCheckpoint(
            tmp_path, filename="{step}", every_n_train_steps=1 + (resume is None), save_top_k=-1
        )
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, callbacks=[checkpoints], use_distributed_sampler=False
        )
        trainer.fit(module, ckpt_path=resume)
        return found

    expected = shown()
    assert len(expected) == 2 * steps
    for step in (2, 4, 6):
        assert shown(tmp_path / f"step={step}.ckpt") == expected[step:]


@pytest.mark.nightly
def test_two_processes_of_torchrun(example, model, alone):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "examples" / "ddp.py"), str(example.packed), str(model)]
    command += ["--rows", str(ROWS), "--global-batch", str(GLOBAL_BATCH)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^2 ranks: attention takes \d.\d+x the balanced time$", done.stdout, re.MULTILINE)
    assert_first_step(*printed(done.stdout), alone)


def test_the_tiny_model_trains(example, tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    run("tiny_model", tmp_path / "tokenizer.json", tmp_path / "tiny")
    output = run("plain_loop", example.packed, tmp_path / "tiny", "--learning-rate", 0.01, "--epochs", 4)
    assert 4 < printed(output)[0] < 6, "about the logarithm of 128"
    assert printed(output, step=4)[0] < printed(output)[0] - 0.3


# ---- encoders ----


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    """A folder with a tiny BERT and its tokenizer, and documents packed for it.

    BERT's own vocabulary and questions of gsm8k where PACKER_TEST_DATA has them; made up ones otherwise.
    """
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    if "PACKER_TEST_DATA" in os.environ:
        shared = Path(os.environ["PACKER_TEST_DATA"])
        tokenizer = AutoTokenizer.from_pretrained(shared / "tokenizers" / "bert_uncased")
        with (shared / "corpora" / "gsm8k.jsonl").open() as lines:
            texts = [json.loads(next(lines))["messages"][0]["content"] for _ in range(40)]
    else:
        pieces = [f"{mark}{letter}" for letter in "abcdefgh" for mark in ("", "##")]
        vocabulary = {
            token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])
        }
        tokenizer = BertTokenizerFast(vocab=vocabulary)
        texts = [" ".join(["bad", "fee", "a", "had"] * number) for number in range(1, 10)]
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder / "google-bert" / "bert-base-uncased")
    tokenizer.save_pretrained(folder / "google-bert" / "bert-base-uncased")
    source = datasets.Dataset.from_dict({"input_ids": tokenizer(texts)["input_ids"]})
    options = {"max_len": 128, "max_segments": 3, "labels": False, "long": "drop", "sync": False}
    packer.pack(source, folder / "wikipedia-packed-512", **options)
    return folder


def bert_alone(folder: Path, *, mean: str) -> tuple[float, float]:
    """(loss, gradient norm) of every document by itself, masked by the naive twin."""
    from transformers import AutoTokenizer, BertForMaskedLM

    name = folder / "google-bert" / "bert-base-uncased"
    model, mlm = BertForMaskedLM.from_pretrained(name), packer.masked_lm(AutoTokenizer.from_pretrained(name))
    losses, counts = [], []
    for row in packer.load(folder / "wikipedia-packed-512"):
        for document, _, length, end in zip(
            row["doc_ids"], row["doc_starts"], row["seq_lengths"], row["seq_lengths"].cumsum(), strict=True
        ):
            if document >= 0:
                tokens = row["input_ids"][end - length : end].tolist()
                hidden, labels = naive.masked_segment(tokens, int(document), 0, mlm=mlm, epoch=0)
                losses.append(model(input_ids=torch.tensor([hidden]), labels=torch.tensor([labels])).loss)
                counts.append(sum(label != -100 for label in labels) if mean == "token" else 1)
    loss = (torch.stack(losses) * torch.tensor(counts)).sum() / sum(counts)
    loss.backward()
    return loss.item(), torch.stack(
        [each.grad.norm() for each in model.parameters() if each.grad is not None]
    ).norm().item()


@pytest.mark.nightly(after=1)
@pytest.mark.parametrize("mean", ["token", "document"])
def test_masked_language_training(bert, mean):
    packed, model = bert / "wikipedia-packed-512", bert / "google-bert" / "bert-base-uncased"
    output = run("bert_mlm", packed, model, "--rows", 3, "--global-batch", 60, "--mean", mean)
    loss, norm = bert_alone(bert, mean=mean)
    found = printed(output)
    assert found[0] == pytest.approx(loss, abs=1e-4)
    assert found[1] == pytest.approx(norm, rel=1e-4)
    assert found[0] > 1


def test_every_example_is_run_here():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    text = (ROOT / "tests" / "test_examples.py").read_text()
    assert names == {name for name in names if name in text}
