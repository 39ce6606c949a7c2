"""Documents a second of one core, from records to tokens and labels: packer, the tokenizers library, transformers, TRL.

    python benchmarks/bench_tokenize.py --tokenizer Qwen/Qwen3-0.6B t0.jsonl.zst gsm8k.jsonl peps.jsonl.zst
    python benchmarks/bench_tokenize.py --tokenizer T --chat-template A.jinja --chat-template B.jinja chats.jsonl

packer                         records in memory to Arrow columns of tokens and, unless all is trained, labels; by
                               gigatoken where it is installed, which is loaded and compared in the first round
packer, tokenizers             the same by the tokenizers library alone
transformers, rendering alone  `apply_chat_template` to text, which tokenizes nothing
transformers, tokens and mask  `apply_chat_template(..., return_assistant_tokens_mask=True)`; templates with tags only
TRL                            `SFTTrainer._prepare_dataset` of a dataset in memory; `assistant_only_loss` for labels
datasets.map                   transformers' tokenizer of batches of 1,000 texts, without a mask
one text at a time             transformers' tokenizer of each text, as Megatron-LM's preprocess_data.py calls it
tokenizers, tokens alone       `encode_batch_fast` of texts that were rendered before, and the ids as lists

All run in one process with one thread for tokens, in turn, A B C A B C, after a round that is thrown away. Figures are
documents by processor time; ratios are packer's speed by the peer's, round by round.
"""

from __future__ import annotations

import json
import os

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # before the first import of tokenizers

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa

from packer.inputs.documents import DocumentError
from packer.options import PackOptions
from packer.text.message_marks import has_generation_tags
from packer.text.text_columns import recognize
from packer.text.text_encoder import Encoder

_DOCUMENTS = 1 << 10  # of a call to the tokenizer; as packer does

Work = Callable[[], object]


def read(path: Path, limit: int) -> list[dict[str, Any]]:
    """The first records of a JSON lines file, plain or compressed."""
    with pa.OSFile(str(path)) as file:
        codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
        text = (pa.CompressedInputStream(file, codec) if codec else file).read()
    return [json.loads(line) for line in text.splitlines()[:limit]]


def seconds(work: Work) -> float:
    """Processor seconds of all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def by_packer(encoder: Encoder, records: list[dict[str, Any]], *, fast: bool) -> Work:
    if not fast:
        encoder.stop_fast()

    def work() -> None:
        for start in range(0, len(records), _DOCUMENTS):
            encoder.encode(records[start : start + _DOCUMENTS])

    return work


def by_tokenizers(tokenizer: Any, texts: list[str]) -> Work:
    def work() -> None:
        for start in range(0, len(texts), _DOCUMENTS):
            encode = tokenizer.backend_tokenizer.encode_batch_fast
            _ = [encoding.ids for encoding in encode(texts[start : start + _DOCUMENTS], add_special_tokens=False)]

    return work


def by_transformers(tokenizer: Any, template: str | None, chats: list[Any]) -> Work:
    def work() -> None:
        for chat in chats:
            tokenizer.apply_chat_template(
                chat, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
            )

    return work


def by_map(tokenizer: Any, texts: list[str]) -> Work:
    import datasets

    datasets.disable_progress_bars()
    datasets.disable_caching()
    dataset = datasets.Dataset.from_dict({"text": texts})
    return lambda: dataset.map(lambda batch: tokenizer(batch["text"]), batched=True, remove_columns="text")


def by_trl(tokenizer: Any, template: str | None, records: list[dict[str, Any]], *, labels: bool) -> Work:
    import datasets
    from trl import SFTTrainer

    datasets.disable_progress_bars()
    datasets.disable_caching()
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss=labels)
    options = SimpleNamespace(
        dataset_num_proc=None,
        dataset_text_field="text",
        assistant_only_loss=labels and "messages" in records[0],
        max_length=None,
        shuffle_dataset=False,
        packing=False,
    )
    dataset = datasets.Dataset.from_list(records)
    return lambda: SFTTrainer._prepare_dataset(trainer, dataset, tokenizer, options, False, None, "train")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--tokenizer", "name", required=True, help="A folder or a Hub id.")
@click.option(
    "--chat-template",
    "templates",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="In place of the tokenizer's; may be repeated.",
)
@click.option("--documents", default=1000, show_default=True, help="Documents taken of each file.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
def main(files: tuple[Path, ...], name: str, templates: tuple[Path, ...], documents: int, runs: int) -> None:
    import tokenizers
    import transformers
    import trl

    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    versions = f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}, trl {trl.__version__}"
    click.echo(f"{versions}; one thread, median of {runs} (min to max), load {os.getloadavg()[0]:.1f}")
    for file in files:
        records = read(file, documents)
        held = recognize(records[0], file.name)
        for path in templates or (None,) if held.conversational else (None,):
            template = path.read_text() if path else None
            for train_on in ("all", None):
                options = PackOptions(max_len=1, tokenizer=name, train_on=train_on, chat_template=template)
                encoder, slow = (Encoder(options, held) for _ in range(2))
                if train_on is None and not encoder.has_labels:
                    continue
                shown = "-" if not held.conversational else path.stem if path else "the tokenizer's"
                click.echo(f"\n{file.name.split('.')[0]}, template {shown}, trained: {encoder.train_on}")
                try:
                    _compare(encoder, slow, tokenizer, template, records, runs)
                except DocumentError:
                    click.echo("  refused: the template rewrites earlier turns")


def _compare(
    encoder: Encoder, slow: Encoder, tokenizer: Any, template: str | None, records: list[dict[str, Any]], runs: int
) -> None:
    """Print the speed of every way that there is for these records."""
    tokens = len(encoder.encode(records).input_ids.values)
    column = encoder.records.columns[0]
    ways = {
        "packer": by_packer(encoder, records, fast=True),
        "packer, tokenizers": by_packer(slow, records, fast=False),
    }
    if encoder.records.conversational:
        chats = [record[column] for record in records]
        texts = tokenizer.apply_chat_template(chats, chat_template=template, tokenize=False)
        ways["transformers, rendering alone"] = lambda: tokenizer.apply_chat_template(
            chats, chat_template=template, tokenize=False
        )
        if encoder.has_labels and has_generation_tags(template or tokenizer.chat_template):
            ways["transformers, tokens and mask"] = by_transformers(tokenizer, template, chats)
            ways["TRL"] = by_trl(tokenizer, template, records, labels=True)
    else:
        texts = ["".join(record[column] for column in encoder.records.columns) for record in records]
        ways["TRL"] = by_trl(tokenizer, None, records, labels=encoder.has_labels)
    ways["datasets.map"] = by_map(tokenizer, texts)
    ways["one text at a time"] = lambda: [tokenizer(text)["input_ids"] for text in texts]
    ways["tokenizers, tokens alone"] = by_tokenizers(tokenizer, texts)
    rounds = [[seconds(work) for work in ways.values()] for _ in range(runs + 1)][1:]
    click.echo(f"  {len(records):,} documents, {tokens:,} tokens{'':<13} documents/s           packer is faster by")
    for way, spent in zip(ways, zip(*rounds, strict=True), strict=True):
        speeds = [len(records) / one for one in spent]
        ratios = [one / ours[0] for one, ours in zip(spent, rounds, strict=True)]
        click.echo(
            f"  {way:<30} {statistics.median(speeds):>8,.0f} ({min(speeds):>6,.0f} to {max(speeds):>6,.0f})"
            f"   {statistics.median(ratios):>6.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
