"""Training by `swift sft`; as a module, in each process of a job with sequence parallelism, over stand-in kernels."""

import json
import os
import sys
from pathlib import Path

from packer.trainers import ms_swift
from tests.helpers.naive_attention import flash_attn_installed


def train(folder, packed, rows, **changes):
    """Train the model in a folder for two steps of all rows, and return what was logged."""
    from swift.pipelines import sft_main

    settings = {
        "model": folder / "model", "model_type": "llama", "template": "default", "tuner_type": "full",
        "external_plugins": ms_swift.__file__, "cached_dataset": packed, "torch_dtype": "float32",
        "per_device_train_batch_size": rows, "gradient_accumulation_steps": 1, "num_train_epochs": 2,
        "max_grad_norm": 1000, "learning_rate": 0.01, "lr_scheduler_type": "constant", "warmup_ratio": 0,
        "output_dir": folder / "out", "add_version": False, "logging_steps": 1, "use_cpu": True, "report_to": "none",
        "check_model": False, "gradient_checkpointing": False, "save_strategy": "no",
    }  # fmt: skip
    arguments = [each for name, value in (settings | changes).items() for each in (f"--{name}", str(value))]
    return sft_main(arguments)["log_history"]


if __name__ == "__main__":
    folder, packed, rows = sys.argv[1:]
    with flash_attn_installed():
        changes = {"attn_impl": "flash_attn", "sequence_parallel_size": 2, "ddp_backend": "gloo"}
        logged = train(Path(folder), packed, rows, **changes)
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(logged[:2]))
