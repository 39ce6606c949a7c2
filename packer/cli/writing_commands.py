"""Commands that write an output: run with an engine and progress bars, and the printing of the result."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from packer.algorithms.prepare_numba import compile_seconds
from packer.cli.command import values_of
from packer.cli.progress_bars import progress_bars
from packer.facts import REJECTED
from packer.options.command_options import EngineOptions, OutputOptions


def run_with_engine(job: Callable[..., Any], *arguments: Any, values: Mapping[str, Any], **options: Any) -> Any:
    """Run a function of the pipeline that several processes may share.

    Args:
        job: the function.
        arguments: its first arguments.
        values: values of the command's options, among them those of `OutputOptions` and `EngineOptions`.
        options: other keyword arguments of the function.
    """
    from packer.ranks import rank_of

    engine_options = EngineOptions(**values_of(EngineOptions, values))
    place = rank_of(engine_options.rank, engine_options.ranks)
    with (
        progress_bars(silently=place is not None and place.rank > 0) as progress,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints what happens to nodes; stdout is for the result
    ):
        return job(
            *arguments,
            engine_options=engine_options,
            progress=progress,
            **values_of(OutputOptions, values),
            **options,
        )


class Stopwatch:
    """Measures from the moment when it is made."""

    def __init__(self) -> None:
        self._begun, self._compiled = time.perf_counter(), compile_seconds()

    def read(self) -> dict[str, float]:
        """Return the seconds until now, and those of them in which kernels were compiled."""
        return {"seconds": time.perf_counter() - self._begun, "compiling": compile_seconds() - self._compiled}


def print_result(
    result: Any,
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
        result: `output` and `found_complete` of the command.
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
    elif result.found_complete:
        click.echo("\n".join([f"{result.output} {complete}", *lines]))
    else:
        click.echo("\n".join([summary(), *lines]))
