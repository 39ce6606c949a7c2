"""Training by `axolotl train`; as a module, in each process of a job with context parallelism."""

import json
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
import yaml

from tests.helpers.naive_attention import flash_attn_installed


def train(folder, packed, rows, **changes):
    """Train the model in a folder for two steps of all rows, and return what was logged."""
    from axolotl.cli.train import do_cli

    settings = {
        "base_model": str(folder / "model"), "plugins": ["packer.trainers.axolotl.PackedPlugin"],
        "packed_dataset": str(packed), "micro_batch_size": rows, "gradient_accumulation_steps": 1,
        "num_epochs": 2, "learning_rate": 0.01, "optimizer": "adamw_torch", "lr_scheduler": "constant",
        "sequence_len": 64, "max_grad_norm": 1000, "output_dir": str(folder / "out"), "logging_steps": 1,
        "bf16": False, "tf32": False, "attn_implementation": "sdpa", "save_strategy": "epoch", "use_cpu": True,
    }  # fmt: skip
    config = folder / f"config-{os.environ.get('RANK', 0)}.yaml"
    config.write_text(yaml.safe_dump(settings | changes))
    with mock.patch("sys.argv", ["axolotl"]):
        do_cli(str(config))
    return json.loads((folder / "out" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]


@contextmanager
def on_cpu():
    """Let Axolotl divide rows among processes on the CPU, where it asks for GPUs."""
    import transformers.modeling_utils
    from accelerate.parallelism_config import ParallelismConfig
    from axolotl.loaders.model import ModelLoader

    build_mesh, set_device_map = ParallelismConfig.build_device_mesh, ModelLoader._set_device_map_config

    def without_device_map(self):
        set_device_map(self)
        self.model_kwargs.pop("device_map", None)

    with ExitStack() as stack:
        for target, name, stand_in in (
            (torch.cuda, "current_device", lambda: torch.device("cpu")),
            (torch.cuda, "can_device_access_peer", lambda *_: True),
            (ParallelismConfig, "build_device_mesh", lambda self, _: build_mesh(self, "cpu")),
            (ModelLoader, "_set_device_map_config", without_device_map),
            (transformers.modeling_utils, "caching_allocator_warmup", lambda *_, **__: None),
        ):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        yield


def main(folder: Path, packed: str, backend: str, *, boundaries: bool) -> None:
    from packer.trainers.axolotl import Collator

    collate = Collator.__call__

    def without_boundaries(self, rows):
        batch = collate(self, rows)
        positions = torch.arange(batch["input_ids"].shape[1])[None]
        return {"input_ids": batch["input_ids"], "labels": batch["labels"], "position_ids": positions}

    with flash_attn_installed(), on_cpu():
        if not boundaries:
            Collator.__call__ = without_boundaries
        attention = "sdpa" if backend == "ulysses" else "flash_attention_2"
        logged = train(
            folder, packed, 1, attn_implementation=attention, context_parallel={"size": 2, "backend": backend},
            gradient_accumulation_steps=2, ddp_backend="gloo", packed_eval_dataset=packed, eval_strategy="epoch",
        )  # fmt: skip
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(logged))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], boundaries="without" not in sys.argv)
