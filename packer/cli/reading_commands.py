"""Commands that write no dataset: stats, show, verify, and check (of a model's attention)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.algorithms import ALGORITHMS
from packer.cli.command import ARGUMENTS, PackedPath, ParamType, command, source_of
from packer.cli.printing import NOT_RIGHT, echo, echo_json, echo_painted
from packer.errors import PackerError
from packer.options.option import as_lengths
from packer.plain_text import render_table
from packer.progress import progress_bars
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.attention.load_model import SmallModel
    from packer.isolation.check_model import Verdict


@command(
    changes={
        "tokenizer": {"help": "Tokenizer of a --source of text, if its name in the manifest is not enough."},
        "workers": {"help": "Number of shards that are checked at a time."},
        "engine": {"help": "Where shards are checked: in local threads, or on a Ray cluster with the same storage."},
    },
    short_help="Check a packed dataset, also against its source.",
)
@click.argument("packed", type=PackedPath())
def verify(
    packed: AnyPath, *, tokenizer: str | None, sources: tuple[str, ...], workers: int | None, engine: str, as_json: bool
) -> None:
    """Check the hashes, structure and figures of a PACKED dataset and, with --source, every token of the source.

    The exit code is 3 if anything is wrong.
    """
    from packer.pipeline import verifying
    from packer.shards.files import holdout_of
    from packer.shards.manifest import is_packed
    from packer.shards.reader import read_manifest

    source = sources[0] if len(sources) == 1 else list(sources) or None
    with progress_bars() as progress:
        found = verifying.verify(packed, source, tokenizer=tokenizer, workers=workers, engine=engine, progress=progress)
        faults = [*found]  # converted, because the result is true if it has no faults
        manifest = None if faults else read_manifest(packed)
    other, side = None, ""
    if manifest is not None and manifest.options.holdout is not None:
        side = "holdout_of" if manifest.options.is_holdout else "holdout"
        other = holdout_of(packed, is_holdout=manifest.options.is_holdout)
    if as_json:
        named = {} if other is None else {side: str(other)}
        echo_json({"packed": str(packed), "source": source, "faults": faults, **named})
    for fault in [] if as_json else faults:
        echo(f"packer: {packed}: {fault}", err=True)
    if faults:
        sys.exit(NOT_RIGHT)
    if manifest is not None and not as_json:
        scope = "hashes and structure" if source is None else "hashes, structure and every token of the source"
        tokens = manifest.totals.tokens_packed
        echo(f"{packed} is verified: {scope} ({manifest.rows:,} rows, {tokens:,} tokens)")
        if other is not None:
            words = "These documents are held out of" if side == "holdout_of" else "Documents that are held out are in"
            echo(f"{words} {other}{'' if is_packed(other) else ', which is not there'}")


@command(short_help="Show which attention implementations are safe for a model.")
@click.argument("model")
def check(model: str, attn: str | None, position_offset: int, *, as_json: bool) -> None:
    """Show which attention implementations keep packed documents of MODEL apart.

    MODEL is a Hub id, a config.json, or a folder that contains one. A small model of the same architecture with random
    weights is trained on a packed batch. When one document changes, no other may change, and losses and gradients must
    match those of unpacked documents. The exit code is 3 if no implementation is safe.
    """
    from transformers.utils import logging

    from packer.attention.load_model import load_small_model
    from packer.isolation.check_model import check as check_model
    from packer.isolation.check_model import installed_implementations

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # the verdicts include what its warnings say
    opened = load_small_model(model)
    names = installed_implementations()
    asked_for = [*names, *([attn] if attn and attn not in names else [])]
    verdicts = check_model(opened.model, asked_for, position_offset=position_offset)
    content = {
        "model": model,
        "architecture": type(opened.model).__name__,
        "layers": opened.layers,
        "all_layers": opened.all_layers,
        "dtype": str(opened.model.dtype).removeprefix("torch."),
        "device": opened.model.device.type,
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    if as_json:
        echo_json(content)
    else:
        echo("\n".join(render_verdicts(opened, verdicts)))
    asked = [verdict for verdict in verdicts if attn in (None, verdict.implementation)]
    if not any(verdict.safe for verdict in asked):
        sys.exit(NOT_RIGHT)


def render_verdicts(probed: SmallModel, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a table of the verdicts (at least one), and a reason and a remedy for each that is not safe."""
    model = probed.model
    dtype = str(model.dtype).removeprefix("torch.")
    dtype += "" if dtype == "float32" else " and float32"
    layers = f"{probed.layers} of {probed.all_layers} layers, random weights"
    yield f"{type(model).__name__}: {layers}, {dtype} on {model.device.type}"
    table = [["attention", "verdict", "others moved", "loss", "gradients"]]
    for verdict in verdicts:
        measures = (verdict.moved, verdict.loss, verdict.gradients)
        table.append([verdict.implementation, verdict.answer, *map(_measure, measures)])
    yield render_table(table, align="<<>>>")
    yield (
        "(others moved: effect of changing one document; loss, gradients: packed compared with single documents; "
        "all relative)"
    )
    if thresholds := verdicts[0].thresholds:
        named = ", ".join(f"{name} {value:,}" for name, value in thresholds.items())
        yield f"(shown for batches of up to {min(thresholds.values()):,} tokens, not beyond {named})"
    yield f"(trees: {_trees(verdicts)})"
    for verdict in verdicts:
        if not verdict.safe:
            yield f"{verdict.implementation} {verdict.answer}: {verdict.reason}; {verdict.remedy}"


def _trees(verdicts: Sequence[Verdict]) -> str:
    """Name the implementations that are safe for trees, or say why none is."""
    safe = [verdict.implementation for verdict in verdicts if verdict.trees == "safe"]
    if "packer_varlen" in safe:
        return "safe with packer.attention.use(model)"
    reasons = {verdict.implementation: verdict.trees_reason for verdict in verdicts}
    why = reasons.get("packer_varlen") or next(iter(reasons.values()))
    return f"safe with a mask only, by {' or '.join(safe)}; {why}" if safe else f"not supported; {why}"


def _measure(value: float | None) -> str:
    """Format a relative difference: None -> -, 0.0 -> 0, 0.0123 -> 1.2e-02."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value else "0"


@command(
    changes={
        "max_len": {
            "help": "Number of tokens in a row, or several to compare, as in 512,1k,2k; not for packed datasets.",
            "is_list": True,
            "default": (),
            "default_words": "4096",
            "metavar": "N[,N...]",
            "convert": as_lengths,
        },
        "algorithm": {
            "help": "Algorithm that decides which documents share a row; all compares them.",
            "choices": (*ALGORITHMS, "all"),
        },
    },
    short_help="Show the padding of a dataset now, and when packed.",
)
@click.argument("dataset", nargs=-1)
def stats(
    dataset: tuple[str, ...],
    max_len: tuple[int, ...],
    tokenizer: str | None,
    *,
    batch_size: int,
    data_parallel: int | None,
    accumulation: int | None,
    model: str | None,
    report: Path | None,
    as_json: bool,
    **values: object,
) -> None:
    """Compare the padding of DATASET before and after packing; for a packed dataset, show how full its rows are.

    It predicts the number of rows that `pack` makes with the same options, including groups, pairs and limits. Several
    row lengths are compared in a table; with `--algorithm all`, algorithms are compared. DATASET may also be a
    histogram: a CSV file with the header length,count. Given several packed datasets, such as web-packed:0.7
    code-packed:0.3, it shows how packer.load mixes them.
    """
    from packer.pipeline.collect_figures import training_job
    from packer.pipeline.stats import ReportFile
    from packer.pipeline.stats import stats as figures_of

    if _print_shares(dataset, as_json=as_json, wants_report=report is not None):
        return
    words = click.get_current_context().meta[ARGUMENTS]
    page = ReportFile(path=report, tokenizer=tokenizer, words=tuple(words))
    with progress_bars() as progress:
        found = figures_of(
            source_of(dataset),
            max_lens=max_len,
            values={**values, "tokenizer": tokenizer},
            documents_per_step=batch_size,
            page=page,
            job=training_job(data_parallel, accumulation, model),
            progress=progress,
        )
    if as_json:
        echo_json(found.to_dict())
        return
    echo(str(found))
    if report is not None:
        echo(f"Report written to {report}")


def _shares_of(dataset: tuple[str, ...]) -> list[str] | dict[str, float] | None:
    """Return packed datasets as `packer.load` takes them: a list of paths, or a dict of weights.

    Returns None if the arguments are something else.
    """
    from packer.pipeline.stats import names_packed

    weights: dict[str, float] = {}
    for word in dataset:
        path, _, weight = word.rpartition(":")
        with contextlib.suppress(ValueError):
            if path and not names_packed(word):
                weights[path] = float(weight)
    paths = list(weights) if weights else list(dataset)
    if not weights and len(dataset) < 2:
        return None
    if len(paths) < len(dataset) or not all(map(names_packed, paths)):
        if weights:
            raise PackerError(
                f"{' '.join(dataset)}: weights are for packed datasets, each of which has one, as in "
                "web-packed-4096:0.7 code-packed-4096:0.3"
            )
        return None
    return weights or paths


def _print_shares(names: tuple[str, ...], *, as_json: bool, wants_report: bool) -> bool:
    """Print the share of each packed dataset in an epoch. Returns False if the names are not packed datasets."""
    from packer.loader.load import CombinedDataset, load

    if (paths := _shares_of(names)) is None:
        return False
    if wants_report:
        raise PackerError("a report shows one dataset: leave out --report, or name one")
    dataset = load(paths)
    assert isinstance(dataset, CombinedDataset)
    if not as_json:
        echo(repr(dataset))
        return True
    parts = zip(dataset.datasets, dataset.shares, strict=True)
    shares = [{"path": str(one.path), **asdict(share)} for one, share in parts]
    echo_json({"rows": len(dataset), "max_len": dataset.max_len, "datasets": shares})
    return True


class RowNumber(ParamType):
    """The number of a row, which may be negative; or a further dataset. Other words with a dash are unknown options."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or the dataset."""
        try:
            return int(value)
        except ValueError:
            if ctx is not None and _shares_of((str(ctx.params["packed"]), value)) is not None:
                return str(value)
            if not value.startswith("-"):
                self.fail(f"{value!r} is not a valid integer", param, ctx)
        known = [name for each in ctx.command.params for name in each.opts] if ctx is not None else []
        raise click.NoSuchOption(value, possibilities=get_close_matches(value, known), ctx=ctx)


@command(
    changes={"tokenizer": {"help": "Show text instead of token ids."}},
    short_help="Show rows of a packed dataset, a document, or the documents of a training step.",
    context_settings={"ignore_unknown_options": True},  # -1 is a row, not an option
)
@click.argument("packed", type=PackedPath())
@click.argument("rows", type=RowNumber(), nargs=-1, metavar="[ROW]...")
def show(
    packed: AnyPath,
    rows: tuple[int | str, ...],
    *,
    document: str | None,
    step: int | None,
    sources: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Show a ROW of a PACKED dataset, segment by segment, with its kept columns; or several rows.

    Rows are numbered from 0, the default; -1 is the last row. The tokens of an index are read from its --source. With
    --step, it shows the documents that an optimizer step trained on, also if packer.load combined several datasets,
    such as web-packed:0.7 code-packed:0.3.
    """
    from packer.pipeline import row_contents

    numbers = [each for each in rows if isinstance(each, int)]
    if (document is not None) + (step is not None) + bool(numbers) > 1:
        raise click.UsageError("Give one of ROW, --document and --step.")
    others = [each for each in rows if isinstance(each, str)]
    with progress_bars():  # prints warnings too
        dataset = (_shares_of((str(packed), *others)) or packed) if others else packed
        source = list(sources) or None
        found = row_contents.show(dataset, numbers or 0, document=document, step=step, source=source, **values)
    # See no-color.org and force-color.org.
    color = not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty())
    if as_json:
        echo_json(found.to_dict())
    elif color:
        echo_painted(found.text)
    else:
        echo(found.text())
