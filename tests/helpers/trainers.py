"""A Hugging Face Trainer that notes what it is shown."""

from pathlib import Path

import torch
import transformers
from torch.utils.data import DataLoader

import packer


class Recorder(torch.nn.Module):
    """A model that notes the tokens of every batch it is trained on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.shown = []

    def forward(self, **batch):
        self.shown.append(batch["input_ids"].tolist())
        return {"loss": self.weight * 1.0}


class PackedTrainer(transformers.Trainer):
    """The Trainer as one uses it with the sampler: the loader is its own, and is not prepared."""

    def get_train_dataloader(self):
        arguments = self.args
        rows, ranks = arguments.per_device_train_batch_size, arguments.world_size
        sampler = packer.BatchSampler(
            self.train_dataset,
            global_batch=rows * ranks * arguments.gradient_accumulation_steps,
            rows=rows,
            rank=arguments.process_index,
            world_size=ranks,
        )
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)


def train_with_trainer(dataset, folder: Path, *, resume: Path | None = None) -> list:
    """Tokens of all batches of 3 epochs in steps of 4 rows, or those after a checkpoint."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2 // ranks,
        num_train_epochs=3,
        save_strategy="steps",
        save_steps=1,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    model = Recorder()
    trainer = PackedTrainer(model=model, args=arguments, train_dataset=dataset, data_collator=packer.collate)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    assert trainer.state.global_step == 3 * packer.BatchSampler(dataset, global_batch=4).steps
    return model.shown
