"""`--config` and `--like`: options of a command from a file, or from a dataset that was packed before.

The command line overrides the file, and the file overrides the dataset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from packer.cli.command import FileContent, UserPath
from packer.errors import PackerError
from packer.options import PackOptions, options_of

Function = Callable[..., None]

_NOT_IN_FILES = ("help", "as_json", "debug", "config", "like")


def _use_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the options of a TOML file the defaults of a command, which must have all of them."""
    if path is None:
        return
    known = {"source" if name == "sources" else name: name for name in _names(context)}
    lists = {parameter.name for parameter in context.command.params if parameter.multiple or parameter.nargs == -1}
    defaults = {}
    for name, value in _read_toml(path).items():
        found = known.get(name.replace("-", "_"))
        if found is None:
            similar = get_close_matches(name.replace("-", "_"), known, n=1)
            meant = f"; did you mean {similar[0]}?" if similar else ""
            raise click.UsageError(f"{path}: {context.info_name} has no option {name!r}{meant}")
        defaults[found] = [value] if found in lists and isinstance(value, str) else value
    context.default_map = {**(context.default_map or {}), **defaults}


def _use_dataset(context: click.Context, parameter: click.Parameter, folder: Path | None) -> None:
    """Make the options of a packed dataset the defaults of a command, and name those that it cannot predict."""
    if folder is None:
        return
    from packer.shards.reader import read_manifest

    try:
        options = read_manifest(folder, intact=True).options
    except PackerError as error:
        raise PackerError(f"--like: {error}") from error
    defaults: dict[str, Any] = {}
    for name, value in options.to_dict().items():
        declared = options_of(PackOptions)[name]
        if name in _names(context):
            defaults[name] = FileContent(value) if declared.is_file else value
        elif declared.needs_tokens:
            click.echo(
                f"packer: {folder} was packed with {declared.shown} {value}, which {context.info_name} cannot predict: "
                f"its rows are those of {declared.shown} {declared.default}",
                err=True,
            )
    context.default_map = {**defaults, **(context.default_map or {})}


def _names(context: click.Context) -> set[str]:
    """Names of the parameters that a file may set."""
    return {str(parameter.name) for parameter in context.command.params} - {*_NOT_IN_FILES}


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackerError(f"{path} cannot be read: {reason}") from error
    return content


def _eager_option(flag: str, metavar: str, callback: Callable[..., None], words: str) -> Callable[[Function], Function]:
    """Make an option that is read before those whose defaults it sets, and does not reach the function."""
    return click.option(
        flag, type=UserPath(), metavar=metavar, is_eager=True, expose_value=False, callback=callback, help=words
    )


like_option = _eager_option(
    "--like", "PACKED", _use_dataset, "Packed dataset whose options are the defaults; its sources are not."
)
config_option = _eager_option(
    "--config", "FILE", _use_file, "TOML file of defaults: max_len = 4096, keep = ['topic'], source = ['web:0.7']."
)
