"""Commands that write an output: run with progress bars, and the printing of the result."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import click

from packer.cli.command import values_of
from packer.cli.progress_bars import progress_bars
from packer.facts import REJECTED
from packer.options.command_options import EngineOptions, OutputOptions
from packer.stores import AnyPath


class Written(Protocol):
    """Result of a function that writes an output."""

    @property
    def output(self) -> AnyPath:
        """Folder of the output."""

    @property
    def found_complete(self) -> bool:
        """Whether it was complete before."""


Result = TypeVar("Result", bound=Written)


def run_job(
    function: Callable[..., Result], *arguments: object, values: Mapping[str, object], **options: object
) -> tuple[Result, dict[str, float]]:
    """Run a function of the pipeline that writes an output, and return its result and the seconds that it took.

    `values` are those of the command's options. If `EngineOptions` are among them, the function takes a `Job`.
    """
    from packer.algorithms.jit import compile_seconds
    from packer.pipeline.job import Job
    from packer.ranks import rank_of

    begun, compiled = time.perf_counter(), compile_seconds()
    writing = values_of(OutputOptions, values)
    engine = EngineOptions(**values_of(EngineOptions, values)) if "engine" in values else None
    rank = None if engine is None else rank_of(engine.rank, engine.ranks)
    with (
        progress_bars(silently=rank is not None and rank.rank > 0) as progress,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints what happens to nodes; stdout is for the result
    ):
        if engine is None:
            result = function(*arguments, progress=progress, **writing, **options)
            return result, {"seconds": time.perf_counter() - begun}
        if "output" in writing:
            options["output"] = writing.pop("output")
        result = function(*arguments, job=Job(engine=engine, progress=progress, **writing), **options)
    return result, {"seconds": time.perf_counter() - begun, "compiling": compile_seconds() - compiled}


def print_result(
    result: Written,
    record: Mapping[str, Any],
    took: Mapping[str, float],
    summary: Callable[[], str],
    *,
    complete: str,
    as_json: bool,
    lines: Sequence[str] = (),
) -> None:
    """Print the result of a command that writes a folder.

    Args:
        result: result of the function that wrote it.
        record: content of the output's record.
        took: seconds, by what they were needed for.
        summary: function that returns the text for an output that was made.
        complete: sentence after the name of an output that was complete before.
        as_json: print JSON instead of text.
        lines: further lines of text.
    """
    if as_json:
        content = {"output": str(result.output), "found_complete": result.found_complete, **took}
        if "documents_rejected" in record.get("totals", record):
            content["rejected"] = str(result.output / REJECTED)
        click.echo(json.dumps({**content, **record}, indent=1))
    else:
        text = f"{result.output} {complete}" if result.found_complete else summary()
        click.echo("\n".join([text, *lines]))
