"""Commands made of declared options, with `--debug` and one-line errors; and the options that only commands have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer.cli.printing import echo, one_line_errors
from packer.errors import OptionError, PackerError
from packer.exporting.targets import STEPS, TARGETS, as_target, as_trainer
from packer.options import Option, options_for, options_of
from packer.options.option import GENERAL, HEADINGS, OUTPUT, READING, REQUIRED, Compression, option
from packer.options.pack_options import INT32
from packer.stores import RemotePath, is_remote
from packer.stores.hub import names_hub
from packer.stores.paths import PathList, expanded, packed_path

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic at run time since click 8.4 only

ARGUMENTS = "packer.arguments"  # key of the words after `packer` on the command line, in `Context.meta`
GROUPED_FROM = 12  # minimum number of options that are listed under headings
NAME_WIDTH = 24  # width of the column of names, the same under all headings
_USUAL = (
    *("max_len", "output", "tokenizer", "chat_template", "text_column", "train_on", "long", "keep", "workers"),
    *("overwrite", "algorithm", "report", "help", "help_all"),
)
"""Options that `--help` lists for commands with many options; `--help-all` lists all options."""
_ALL = "packer.help_all"  # key in `Context.meta`, set if all options are to be shown


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOptions:
    """Options that only commands have. Each is a parameter of the functions of its commands. Manifests omit them."""

    for_trainer: str | None = option(
        None,
        "Trainer of the rows: refuse options whose rows it cannot read, and print the lines of its configuration.",
        OUTPUT,
        choices=tuple(STEPS),
        convert=as_trainer,
        flags=("--for",),
        metavar="TRAINER",
        commands=("pack",),
    )
    to: str = option(
        ...,
        "Trainer that reads the files (see the list above); parquet keeps all columns unchanged.",
        OUTPUT,
        choices=tuple(TARGETS),
        convert=as_target,
        metavar="TRAINER",
        commands=("export",),
    )
    compression: Compression | None = option(
        None, "Compression of the Parquet pages.", OUTPUT, default_words="zstd", commands=("export",)
    )
    eos_id: int | None = option(
        None,
        "Token that ends documents, for trainers that use it to find documents or padding.",
        OUTPUT,
        default_words="last token of the first document",
        most=INT32,
        commands=("export",),
    )
    batch_size: int = option(
        64, "Documents per optimizer step in training without packing.", GENERAL, least=1, commands=("stats",)
    )
    data_parallel: int | None = option(
        None,
        "Number of data-parallel ranks: show how long they wait for each other if each rank trains one row at a time.",
        GENERAL,
        least=1,
        commands=("stats",),
    )
    accumulation: int | None = option(
        None, "Rows per rank in an optimizer step.", GENERAL, least=1, default_words="1", commands=("stats",)
    )
    model: str | None = option(
        None,
        "Model to train: its number of weights, as in 70B, or its config (a folder, a config.json or a Hub id).",
        GENERAL,
        default_words="7B",
        commands=("stats",),
    )
    report: Path | None = option(
        None,
        "HTML file to write: a report with plots, which needs no network access.",
        OUTPUT,
        metavar="FILE.html",
        commands=("stats",),
    )
    attn: str | None = option(
        None,
        "Attention implementation that must be safe for the command to succeed.",
        GENERAL,
        default_words="any",
        commands=("check",),
    )
    position_offset: int = option(
        0,
        "Position of the first token of a document, as in packer.batches: 2 for RoBERTa.",
        GENERAL,
        commands=("check",),
    )
    document: str | None = option(
        None, "Show the segments of this document instead of a row.", GENERAL, metavar="ID", commands=("show",)
    )
    step: int | None = option(
        None, "Show the rows of this optimizer step on all ranks; the first is 1.", GENERAL, least=1, commands=("show",)
    )
    global_batch: str | None = option(
        None,
        "Rows per optimizer step, or a JSON file of the sampler's state, which has its other settings, too.",
        GENERAL,
        metavar="N_OR_STATE",
        commands=("show",),
    )
    seed: int = option(0, "Seed of the sampler.", GENERAL, most=2**64 - 1, commands=("show",))
    epoch: int | None = option(
        None, "Epoch in which --step is counted.", GENERAL, default_words="all epochs from 0 on", commands=("show",)
    )
    full: bool = option(False, "Show all tokens, with trained ones marked.", GENERAL, commands=("show",))
    sources: tuple[str, ...] = option(
        (),
        "Dataset that was packed. Repeat it, in order, for all paths of a source.",
        READING,
        flags=("--source",),
        metavar="DATASET",
        commands=("verify", "show"),
    )
    as_json: bool = option(
        False,
        "Print JSON instead of text.",
        GENERAL,
        flags=("--json",),
        commands=("pack", "stats", "tokenize", "verify", "show", "export", "check"),
    )


def _show_all(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the help with every option, and exit."""
    if is_asked:
        ctx.meta[_ALL] = True
        echo(ctx.get_help())
        ctx.exit()


def command(
    changes: Mapping[str, Mapping[str, Any]] = {}, *, resumes: bool = False, **settings: Any
) -> Callable[[Callable[..., None]], PackerCommand]:
    """Turn a function into a command. Its parameters are all declared options whose `commands` name it.

    changes: fields of `Option` that differ in this command, by option name. resumes: whether repeating an interrupted
    command resumes it, as the message about the interruption then says.
    """

    def made_of(function: Callable[..., None]) -> PackerCommand:
        made = click.command(cls=PackerCommand, **settings)(function)
        alone = [each for each in options_of(CommandOptions).values() if made.name in each.commands]
        declared = [*options_for(str(made.name)).values(), *alone]
        made.params += [DeclaredOption(replace(each, **changes.get(each.name, {}))) for each in declared]
        made.params.append(click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."))
        settled: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
        made.params.append(click.Option(["--help-all"], help="Show every option and exit.", **settled))
        made.resumes = resumes
        return made

    return made_of


def source_of(dataset: tuple[str, ...]) -> str | PathList:
    """Return a single path unchanged, and several paths as one source. Raises a UsageError if there is no path."""
    if not dataset:
        raise click.UsageError("Give a DATASET.")
    return dataset[0] if len(dataset) == 1 else PathList(dataset)


class PackerCommand(click.Command):
    """A command with `--debug` that prints errors in one line and lists its options under headings."""

    resumes = False

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **settings: Any) -> click.Context:
        """See `click.Command`. Prints errors in one line as well, because some options read a file."""
        with one_line_errors(debug="--debug" in args, as_json="--json" in args):
            return super().make_context(info_name, args, *rest, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`."""
        as_json = ctx.params.get("as_json", False)
        with one_line_errors(debug=ctx.params.pop("debug"), as_json=as_json, resumes=self.resumes):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
        found = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        if len(found) < GROUPED_FROM:
            super().format_options(ctx, formatter)
            return
        if _ALL not in ctx.meta:
            found = [each for each in found if each.required or each.name in _USUAL]
        for heading in HEADINGS:
            records = [each.get_help_record(ctx) for each in found if heading_of(each) == heading]
            lines = [(record[0].ljust(NAME_WIDTH), record[1]) for record in records if record is not None]
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines, col_max=NAME_WIDTH)


def heading_of(parameter: click.Option) -> str:
    """Return the heading of an option, which is `REQUIRED` if a value must be given."""
    if parameter.required:
        return REQUIRED
    return parameter.declared.heading if isinstance(parameter, DeclaredOption) else GENERAL


class DeclaredOption(click.Option):
    """An option of a command, created from a declaration."""

    def __init__(self, declared: Option) -> None:
        self.declared = declared
        default, is_list = declared.default, declared.is_list and declared.convert is None
        settings: dict[str, Any] = {"metavar": declared.metavar}
        settings |= {"required": True} if declared.is_required else {"default": default}
        if declared.type is bool:
            settings |= {"flag_value": False, "type": click.BOOL} if default is True else {"is_flag": True}
        else:
            settings |= {"type": _type_of(declared), "multiple": is_list}
            settings["show_default"] = declared.default_words is None and default not in (None, ..., ())
        super().__init__(
            [*declared.flags, declared.name], help=_help(declared, repeats=settings.get("multiple", False)), **settings
        )


def _help(declared: Option, *, repeats: bool) -> str:
    """Return the help: the sentence, the choices if they are not shown beside the name, and a default in words."""
    parts = [declared.off if declared.default is True and declared.off is not None else declared.help]
    if declared.choices and declared.metavar is not None:
        parts.append(f"One of: {', '.join(declared.choices)}.")
    if repeats and "Repeat it" not in declared.help:
        parts.append("Repeat it for several.")
    if declared.default_words is not None:
        parts.append(f" [default: {declared.default_words}]")
    return " ".join(parts)


def _type_of(declared: Option) -> ParamType:
    if declared.type is Path:
        return UserPath()
    if declared.choices and declared.convert is None:
        return click.Choice(declared.choices)
    return Declared(declared)


class Declared(ParamType):
    """Type of the value of a declared option, with its limits."""

    def __init__(self, declared: Option) -> None:
        self.declared = declared
        self.name = declared.type.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Convert and check a string, or the default."""
        declared = self.declared
        try:
            if declared.convert is not None:
                value = declared.converted(value)
            elif isinstance(value, str):
                value = declared.type(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            self.fail(f"{value!r} is not {declared.kind.name}", param, ctx)
        for one in value if isinstance(value, tuple) else (value,):
            if not declared.kind.fits(one):
                self.fail(f"{one!r} is not {declared.kind.name}", param, ctx)
        return value


class UserPath(ParamType):
    """A path in which `~` is the home folder, even in quotes or after `=`, where the shell does not expand it."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a `Path`, or a `RemotePath` for an address in object storage."""
        try:
            if is_remote(value):
                return RemotePath.of(str(value))
            path = Path(expanded(value))
        except PackerError as error:
            self.fail(str(error), param, ctx)
        if "://" in str(value):
            self.fail(f"{value} is neither a local path nor an address like s3://bucket/folder", param, ctx)
        return path


class PackedPath(UserPath):
    """The path of a packed dataset, or its id or address on the Hub, from which it is downloaded."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the path of the download."""
        return packed_path(value) if names_hub(value) else super().convert(value, param, ctx)
