"""Seconds of whole commands that tokenize files of JSON lines, on one core and on several: packer, datasets and TRL.

    python benchmarks/bench_tokenize_files.py --tokenizer qwen3 --cores 2 text.jsonl
    python benchmarks/bench_tokenize_files.py --tokenizer qwen3 --chat-template marked.jinja chats.jsonl

packer              `packer tokenize` with `--workers`; by gigatoken if it is installed
packer, tokenizers  the same with PACKER_GIGATOKEN=0
datasets.map        `load_dataset("json")`, then the tokenizer of 1,000 texts at a time with `num_proc`; tokens alone,
                    of `text`, or of `prompt` and `completion` one after the other
TRL                 `SFTTrainer._prepare_dataset` with `dataset_num_proc`; `assistant_only_loss` for chats

Each is a process of its own, start and writing included; its processor time is that of all its processes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import click


def by_peer(peer: str, file: Path, name: str, template: str | None, cores: int) -> None:
    """Prepare a file as datasets or TRL do, and write it."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    with tempfile.TemporaryDirectory() as folder:
        dataset = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=folder)
        workers = cores if cores > 1 else None
        if peer == "TRL":
            from trl import SFTTrainer

            of_chats = "messages" in dataset.column_names
            trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss=False)
            options = SimpleNamespace(
                dataset_num_proc=workers,
                dataset_text_field="text",
                assistant_only_loss=of_chats,
                max_length=None,
                shuffle_dataset=False,
                packing=False,
            )
            SFTTrainer._prepare_dataset(trainer, dataset, tokenizer, options, False, None, "train")
        else:
            texts = ["text"] if "text" in dataset.column_names else ["prompt", "completion"]

            def tokens(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
                parts = (tokenizer(batch[column])["input_ids"] for column in texts)
                return {"input_ids": [list(chain(*of_record)) for of_record in zip(*parts, strict=True)]}

            dataset.map(tokens, batched=True, remove_columns=dataset.column_names, num_proc=workers)


def spent(command: list[str], **environment: str) -> tuple[float, float]:
    """Run a command; return its wall seconds and the processor seconds of it and its children."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option("--tokenizer", "name", required=True, help="A folder or a Hub id.")
@click.option("--chat-template", "template", type=click.Path(path_type=Path, exists=True))
@click.option("--cores", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--way", "chosen", multiple=True, help="Only these ways.")
@click.option("--peer", hidden=True)
def main(
    file: Path, name: str, template: Path | None, cores: tuple[int, ...], chosen: tuple[str, ...], peer: str | None
) -> None:
    if peer:
        by_peer(peer, file, name, template.read_text() if template else None, cores[0])
        return
    given = ["--tokenizer", name, *(["--chat-template", str(template)] if template else [])]
    of_chats = template is not None
    size = file.stat().st_size / 1e6
    click.echo(f"{file.name}, {size:,.0f} MB{'':<12} wall s   CPU s   MB a wall second (load {os.getloadavg()[0]:.1f})")
    for count in cores:
        for way in ("packer", "packer, tokenizers", "datasets.map", "TRL"):
            if (chosen and way not in chosen) or (way == "datasets.map" and of_chats):
                continue
            with tempfile.TemporaryDirectory() as folder:
                if way.startswith("packer"):
                    out = ["-o", f"{folder}/out", "--workers", str(count)]
                    command = [sys.executable, "-m", "packer", "tokenize", str(file), *given, *out]
                    wall, cpu = spent(command, PACKER_GIGATOKEN="0" if "," in way else "1")
                else:
                    command = [sys.executable, __file__, str(file), *given, "--peer", way, "--cores", str(count)]
                    wall, cpu = spent(command, TOKENIZERS_PARALLELISM="false", HF_DATASETS_CACHE=folder)
            click.echo(f"{way:<20} {count} cores {wall:>12.1f} {cpu:>7.1f} {size / wall:>8.1f}")


if __name__ == "__main__":
    main()
