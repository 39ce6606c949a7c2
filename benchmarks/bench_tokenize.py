"""CPU and wall time of packer's way from records to tokens and labels, against the tokenizer called directly.

    python benchmarks/bench_tokenize.py --tokenizer Qwen/Qwen3-0.6B t0.jsonl.zst gsm8k.jsonl peps.jsonl.zst
    python benchmarks/bench_tokenize.py --tokenizer T --chat-template A.jinja --chat-template B.jinja chats.jsonl

The peer has the same texts in memory, calls `encode_batch_fast` of the tokenizers library on as many at a time, and
reads the ids as lists; of chats it renders each once by `apply_chat_template` before, which packer has to do too, and
it makes no labels. packer starts from the records. Rounds are taken in turn, A B A B, after one that is thrown away.
Ratios are the peer's time by packer's, round by round: 1 is the peer's speed, more is faster.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from packer.text import Encoder, TextError, TextOptions, open_tokenizer, recognise

_DOCUMENTS = 1 << 10  # of a call to the tokenizer; as packer does


def read(path: Path, limit: int) -> list[dict[str, Any]]:
    """The first records of a JSON lines file, plain or compressed."""
    with pa.OSFile(str(path)) as file:
        codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
        text = (pa.CompressedInputStream(file, codec) if codec else file).read()
    return [json.loads(line) for line in text.splitlines()[:limit]]


def timed(work: Callable[[], int]) -> tuple[int, float, float]:
    """Tokens, CPU seconds of all threads, and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = work()
    return tokens, time.process_time() - cpu, time.perf_counter() - wall


def by_packer(encoder: Encoder, batches: list[list[dict[str, Any]]]) -> int:
    return sum(len(encoder.encode(batch).input_ids.values) for batch in batches)


def by_tokenizer(tokenizer: Any, template: str | None, records: list[dict[str, Any]], columns: tuple[str, ...]) -> int:
    """Tokenize prepared texts, or conversations rendered here; count the tokens of the lists of ids."""
    tokens = 0
    for start in range(0, len(records), _DOCUMENTS):
        part = records[start : start + _DOCUMENTS]
        if isinstance(part[0][columns[0]], str):
            texts = ["".join(record[column] for column in columns) for record in part]
        else:
            chats = [record[columns[0]] for record in part]
            texts = tokenizer.apply_chat_template(chats, chat_template=template, tokenize=False)
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        tokens += sum(len(ids) for ids in [encoding.ids for encoding in encodings])
    return tokens


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
@click.option("--documents", default=4000, show_default=True, help="Documents taken of each file.")
@click.option("--runs", default=5, show_default=True, help="Rounds that count.")
def main(files: tuple[Path, ...], name: str, templates: tuple[Path, ...], documents: int, runs: int) -> None:
    import tokenizers
    import transformers

    tokenizer: Any = open_tokenizer(name)
    versions = f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}"
    click.echo(f"{os.cpu_count()} cores, {versions}; ratio to the tokenizers library, median of {runs} (min to max)")
    click.echo(
        f"{'corpus':<14} {'template':<15} {'trained':>10} {'tokens':>10} {'Mtok/CPU s':>10} {'CPU ratio':>19} "
        f"{'wall ratio':>19}"
    )
    for file in files:
        records = read(file, documents)
        held = recognise(records[0], file.name)
        for template in templates or (None,) if held.conversational else (None,):
            for train_on in ("all", None):
                options = TextOptions(
                    tokenizer=name, train_on=train_on, chat_template=template.read_text() if template else None
                )
                encoder = Encoder(options, held)
                if train_on is None and not encoder.has_labels:
                    continue
                shown = "-" if not held.conversational else template.stem if template else "the tokenizer's"
                row = f"{file.name.split('.')[0]:<14} {shown:<15} {encoder.train_on:>10}"
                try:
                    click.echo(f"{row} {_compared(encoder, tokenizer, options.chat_template, records, runs)}")
                except TextError:
                    click.echo(f"{row} refused: the template rewrites earlier turns")


def _compared(encoder: Encoder, tokenizer: Any, template: str | None, records: list[dict[str, Any]], runs: int) -> str:
    """Tokens, speed and ratios of one way of encoding."""
    batches = [records[start : start + _DOCUMENTS] for start in range(0, len(records), _DOCUMENTS)]
    rounds = []
    for _ in range(runs + 1):
        ours = timed(lambda: by_packer(encoder, batches))
        theirs = timed(lambda: by_tokenizer(tokenizer, template, records, encoder.records.columns))
        rounds.append((ours, theirs))
    ratios = [[theirs[at] / ours[at] for ours, theirs in rounds[1:]] for at in (1, 2)]
    shown = [f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in ratios]
    tokens = rounds[-1][0][0]
    cpu = statistics.median(ours[1] for ours, _ in rounds[1:])
    return f"{tokens:>10,} {tokens / cpu / 1e6:>10.2f} {shown[0]:>19} {shown[1]:>19}"


if __name__ == "__main__":
    main()
