"""Train on packed rows with Lightning, on any number of devices.

    python examples/lightning_trainer.py dataset-packed-4096 Qwen/Qwen3-0.6B trained --rows 4 --global-batch 32

The data loader yields optimizer steps, each a list of batches, because the loss of a step is the mean over the tokens
of all its batches, or with `--loss` over their documents or by weights: `accumulate_grad_batches` would compute the
mean of their means. Checkpoints hold the place in the dataset, with torchdata's StatefulDataLoader, so that a run
resumes with the next step.
"""

from __future__ import annotations

from typing import Any

import click
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoModelForCausalLM, PreTrainedModel

import packer


class PackedTraining(lightning.LightningModule):
    """Trains a model on batches of `rows` and steps of `global_batch` rows over all devices."""

    def __init__(
        self,
        model: PreTrainedModel,
        packed: str,
        *,
        rows: int = 4,
        global_batch: int = 32,
        loss: str | None = None,
        learning_rate: float = 2e-5,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model.train()
        self.dataset = packer.load(packed)
        self.rows = rows
        self.global_batch = global_batch
        self.loss = loss
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self.automatic_optimization = False

    def train_dataloader(self) -> StatefulDataLoader[Any]:
        """Return a loader of this rank's batches, one list of them per step."""
        sampler = packer.BatchSampler(
            self.dataset,
            global_batch=self.global_batch,
            rank=self.global_rank,
            world_size=self.trainer.world_size,
        )
        return StatefulDataLoader(self.dataset, batch_sampler=sampler, collate_fn=self.collate_step)

    def collate_step(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the batches of a step, as many on every rank, even if the last step of an epoch has fewer rows."""
        batches = self.global_batch // (self.rows * self.trainer.world_size)
        parts = [rows[number::batches] or self.dataset.__getitems__([]) for number in range(batches)]
        return [packer.collate(part, loss_weights=self.loss) for part in parts]

    def training_step(self, step: list[dict[str, Any]]) -> None:
        """Run one optimizer step."""
        items = packer.num_items_in_batch(step)
        total = torch.zeros((), device=self.device)
        for batch in step:
            labels, weights = batch.pop("labels"), batch.pop("loss_weights", None)
            loss = packer.causal_lm_loss(self.model(**batch).logits, labels, num_items=items, weights=weights)
            self.manual_backward(loss * self.trainer.world_size)  # gradients are averaged over ranks
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.max_grad_norm)
        optimizer = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        self.log("loss", total, prog_bar=True, sync_dist=True, reduce_fx="sum", batch_size=1)
        self.log("grad_norm", norm, prog_bar=True, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


@click.command()
@click.argument("packed")
@click.argument("model")
@click.argument("folder")
@click.option("--rows", default=4, show_default=True, help="Rows per batch on each device.")
@click.option("--global-batch", default=32, show_default=True, help="Rows per optimizer step over all devices.")
@click.option("--loss", type=click.Choice(["token", "document", "weight"]), help="What the loss is the mean of.")
@click.option("--epochs", default=1, show_default=True, help="Passes over the dataset.")
@click.option("--learning-rate", default=2e-5, show_default=True, help="Learning rate of AdamW.")
@click.option("--save-every", default=500, show_default=True, help="Steps from one checkpoint to the next.")
@click.option("--resume", help="Checkpoint to resume from.")
def main(
    packed: str,
    model: str,
    folder: str,
    rows: int,
    global_batch: int,
    loss: str | None,
    epochs: int,
    learning_rate: float,
    save_every: int,
    resume: str | None,
) -> None:
    """Train MODEL, a path or Hub id, on the PACKED dataset; metrics and checkpoints go to FOLDER."""
    loaded = packer.attention.use(AutoModelForCausalLM.from_pretrained(model).float())
    trainer = lightning.Trainer(
        max_epochs=epochs,
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        callbacks=[ModelCheckpoint(every_n_train_steps=save_every, save_top_k=-1)],
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
        use_distributed_sampler=False,  # BatchSampler divides the rows among ranks
    )
    module = PackedTraining(
        loaded, packed, rows=rows, global_batch=global_batch, loss=loss, learning_rate=learning_rate
    )
    trainer.fit(module, ckpt_path=resume)


if __name__ == "__main__":
    main()
