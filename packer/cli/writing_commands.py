"""What commands that write an output have in common: they run with progress bars, and print the result."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from packer.cli.progress_bars import progress_bars
from packer.facts import REJECTED
from packer.figures.plain_text import duration_and_compiling
from packer.options import values_of

if TYPE_CHECKING:
    from packer.pipeline.job import Written


def write_output(
    function: Callable[..., Written[Any]],
    *arguments: object,
    values: Mapping[str, Any],
    as_json: bool,
    complete: str,
    summary: Callable[[Written[Any], str], str],
    report: Callable[[Written[Any]], list[str]] = lambda _: [],
    **options: object,
) -> None:
    """Run a function of the pipeline that writes an output, and print its result.

    Args:
        function: takes the arguments and options, and a `Job`.
        arguments: its arguments.
        values: values of the command's options.
        as_json: print JSON instead of text.
        complete: sentence after the name of an output that was complete before.
        summary: function from the result and the time that it took, in words, to the text for an output that was made.
        report: function that writes more about the result, and returns lines about it.
        options: further arguments by name.
    """
    from packer.algorithms.jit import compile_seconds
    from packer.pipeline.job import Job
    from packer.ranks import rank_of

    # Run it.
    begun, compiled = time.perf_counter(), compile_seconds()
    rank = rank_of(values.get("rank"), values.get("ranks"))
    with (
        progress_bars(silently=rank is not None and rank.rank > 0) as progress,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints what happens to nodes; stdout is for the result
    ):
        result = function(*arguments, job=Job(progress=progress, **values_of(Job, values)), **options)
    seconds, compiling = time.perf_counter() - begun, compile_seconds() - compiled

    # Print the result.
    if result.finished_elsewhere:  # the rank that finished it prints it
        if values["ranks"] is None:
            click.echo(f"{result.output} was completed by another process at the same time")
        return
    lines = report(result)
    if as_json:
        found, record = {"output": str(result.output), "found_complete": result.found_complete}, result.record.to_dict()
        took = {"seconds": seconds, "compiling": compiling}
        rejected = "documents_rejected" in record.get("totals", record)
        listed = {"rejected": str(result.output / REJECTED)} if rejected else {}
        click.echo(json.dumps({**found, **took, **listed, **record}, indent=1))
        return
    if result.found_complete:
        checked = f" ({result.checked})" if result.checked else ""
        text = f"{result.output} {complete}: nothing to do{checked}"
    else:
        text = summary(result, duration_and_compiling(seconds, compiling))
    click.echo("\n".join([text, *lines]))
