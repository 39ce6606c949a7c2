"""Steps of the Trainer and of SFTTrainer with a loss by weights, and the same from documents alone.

As a module, SFTTrainer in each of two processes: `python -m tests.helpers.weighted_steps FOLDER PACKED LOSS`.
"""

import sys
from math import inf
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

import packer
from tests.helpers.documents import MAX_LEN, make_example, make_source
from tests.helpers.models import gradients, recorded_gradients, tiny_llama, tiny_tokenizer, train_alone
from tests.helpers.torch_jobs import job


def make_trainer(name, packed, folder, *, loss, tune=lambda found: found, **changes):
    """Return a trainer of a float64 model that does not learn, so that the model of every step is the same."""
    options = {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
        "num_train_epochs": 1, "max_grad_norm": inf, "learning_rate": 0.0, "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "save_strategy": "no", "logging_steps": 1, "optim": "sgd",
    } | changes  # fmt: skip
    model = tiny_llama(dtype=torch.float64)
    if name == "hf":
        arguments = transformers.TrainingArguments(**options)
        return transformers.Trainer(model, **tune(packer.trainers.hf(packed, arguments, eval=packed, loss=loss)))
    import trl

    arguments = trl.SFTConfig(**options, bf16=False)
    found = tune(packer.trainers.trl(packed, arguments, eval=packed, loss=loss))
    return trl.SFTTrainer(model, processing_class=tiny_tokenizer(), **found)


def noting(batches):
    """Return a change of a trainer's arguments that notes the (document, start) of every batch in `batches`."""

    def tune(found):
        collate = found["data_collator"]

        def note(rows):
            segments = [zip(list(row["doc_ids"]), list(row["doc_starts"]), strict=False) for row in rows]
            batches.append([(int(doc), int(start)) for row in segments for doc, start in row if doc >= 0])
            return collate(rows)

        return {**found, "data_collator": note}

    return tune


def train(name, packed, folder, *, accumulation, **options):
    """Train for an epoch. Return the losses of the steps, their gradients, and the pieces of their batches."""
    batches = []
    trainer = make_trainer(
        name, packed, folder, tune=noting(batches), gradient_accumulation_steps=accumulation, **options
    )
    with recorded_gradients(trainer.model) as recorded:
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, recorded, [batches[start : start + accumulation] for start in range(0, len(batches), accumulation)]


def step_alone(model, pieces, batches, weight_of):
    """Return loss and gradients of a step of batches of pieces, in which no piece meets another.

    `weight_of(piece, batch)` has a weight for each token. Weights are divided before the backward pass, as in the
    trainers, because the norms of a Llama round to float32.
    """
    weighted = [(key, torch.tensor(weight_of(key, batch), dtype=torch.float64)) for batch in batches for key in batch]
    targets = {key: torch.tensor(pieces[key][1][1:], dtype=torch.int64) for batch in batches for key in batch}
    items = sum(weights[1:][targets[key] != -100].sum().item() for key, weights in weighted)
    model.zero_grad()
    total = 0.0
    for key, weights in weighted:
        logits = model(input_ids=torch.tensor([pieces[key][0]]), use_cache=False).logits[0, :-1]
        losses = cross_entropy(logits, targets[key], ignore_index=-100, reduction="none")
        loss = (losses * weights[1:]).sum() / items
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def document_weights(pieces):
    """Return the `weight_of` of a mean over documents, whose pieces in a batch share a weight."""

    def weight_of(key, batch):
        trained = sum(label != -100 for other in batch if other[0] == key[0] for label in pieces[other][1][1:])
        return [1 / max(trained, 1)] * len(pieces[key][0])

    return weight_of


def weighted_source():
    """Return a source whose tokens have weights, some of them 0."""
    source = make_source("masked prompts")
    random = np.random.default_rng(0)
    weights = [random.integers(0, 8, len(tokens)) / 4096 for tokens in source["input_ids"]]
    weights[0][:] = 1 / 1024  # for a whole document; a step has less than 1 in all
    labels = [np.where(own > 0, each, -100).tolist() for own, each in zip(weights, source["labels"], strict=True)]
    return {**source, "labels": labels, "loss_weights": [own.tolist() for own in weights]}


def token_weights(source):
    """Return the `weight_of` of the weights in a source."""
    return lambda key, _: source["loss_weights"][key[0]][key[1] : key[1] + MAX_LEN]


def whole_documents(folder, loss):
    """Pack weighted documents; return the example, and of a step on them alone (loss, norm, norm without weights)."""
    source = weighted_source()
    example = make_example(folder, source, add_column=[], long="drop")
    pieces = {key: piece for key, piece in example.pieces.items() if (key[0], 32) not in example.pieces}
    model = tiny_llama(dtype=torch.float64)
    weight_of = token_weights(source) if loss == "weight" else document_weights(pieces)
    expected, found = step_alone(model, pieces, [list(pieces)], weight_of)
    norm = torch.stack([each.norm() for each in found.values()]).norm().item()
    return example, expected, norm, train_alone(model, pieces).gradient_norm


def assert_steps_as_alone(ranks, pieces, weight_of):
    """Compare what `train` returned on each rank with documents alone,."""
    model = tiny_llama(dtype=torch.float64)
    steps = list(zip(*(batches for _, _, batches in ranks), strict=True))
    for number, own in enumerate(steps):
        batches = [batch for each in own for batch in each]
        loss, expected = step_alone(model, pieces, batches, weight_of)
        for losses, recorded, _ in ranks:
            assert len(recorded) == len(steps)
            assert abs(losses[number] - loss) < 1e-5
            for name, gradient in expected.items():
                assert gradient.abs().max() > 1e-6, f"{name}: nothing to compare"
                assert (recorded[number][name] - gradient).abs().max() < 1e-10, f"step {number}: {name}"


def main(folder, packed, name, losses):
    """Save what `train` returns on this rank for every loss and number of accumulation steps."""
    with job(folder) as rank:
        train_ranks(folder, packed, name, losses, rank)


def train_ranks(folder, packed, name, losses, rank, *, accumulations=(1, 2, 3)):
    """Train on this rank of a job, and save what `train` returns."""
    for loss in losses:
        for accumulation in accumulations:
            found = train(
                name, packed, folder / "out", loss=loss, accumulation=accumulation, per_device_train_batch_size=1
            )
            torch.save(found, folder / f"{name}-{loss}-{accumulation}-{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
