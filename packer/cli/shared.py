"""What the commands share: options, errors in one line, progress bars. Heavy imports wait until needed."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packer import signals
from packer.algorithms import ALGORITHMS, ALIASES
from packer.cli.bus_errors import explained_bus_errors
from packer.errors import PackerError
from packer.paths import expanded
from packer.system_errors import shortage_behind

if TYPE_CHECKING:
    from packer.progress import Progress

Command = TypeVar("Command", bound=Callable[..., Any])

TRAIN_NAMES = ("all", "completion", "assistant")  # as in packer.text, which imports numpy; a test compares them
LONG_NAMES = ("split", "truncate", "drop", "error")  # as in packer.plan, which imports numpy; a test compares them
ALGORITHM_NAMES = click.Choice([*ALGORITHMS, *ALIASES])


class UserPath(click.Path):
    """A path, in which `~` is the home folder also where the shell leaves it: in quotes and after `=`."""

    def __init__(self, *, exists: bool = False, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.Path`."""
        return super().convert(expanded(value), param, ctx)


def declared(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """A command with these options, in their order in its help."""
    for option in reversed(options):
        command = option(command)
    return command


def algorithm_options(command: Command) -> Command:
    """Declare what `pack` and `stats` have in common: the algorithm, where it may stop, and how documents are cut."""
    options = (
        click.option("--algorithm", type=ALGORITHM_NAMES, default="auto", show_default=True,
                     help="How documents share rows; `packer compare` shows what each makes of a dataset."),
        click.option("--gap", type=click.FloatRange(0, 1), metavar="SHARE",
                     help="With `optimal`: stop this near to the lower bound, 0.001 for 0.1%."),
        click.option("--time-limit", type=click.FloatRange(0), metavar="SECONDS",
                     help="With `optimal`: stop with the best so far; the rows then depend on the machine."),
        click.option("--overlap", type=click.IntRange(0), default=0, show_default=True, metavar="N",
                     help="With --long split: tokens of the piece before that a piece begins with, as context."),
        click.option("--truncate-side", type=click.Choice(["left", "right"]), default="right", show_default=True,
                     help="With --long truncate: the side that goes."),
        click.option("--align", type=click.IntRange(1), default=1, show_default=True, metavar="N",
                     help="Pad every segment to a multiple of N; context parallelism needs 2 x its size."),
    )  # fmt: skip
    return declared(command, options)


def text_options(command: Command) -> Command:
    """Declare what makes tokens of text, in every command that reads a source; a template arrives as its content."""
    options = (
        click.option("--tokenizer", metavar="PATH_OR_ID",
                     help="Of a DATASET of text: a folder, a tokenizer.json or a Hub id. A column input_ids is then "
                     "refused, unless --text-column says what to take; in a mixture such a source is taken as tokens."),
        click.option("--text-column", metavar="NAME",
                     help="Column of text or messages, or two, prompt and completion, as in question,answer: they "
                     "are joined as they are, with nothing in between [default: text; prompt and completion; "
                     "instruction, input and output (Alpaca), joined by empty lines; messages; or conversations]."),
        click.option("--train-on", type=click.Choice(TRAIN_NAMES),
                     help="What is trained [default: assistant for chats, completion for prompts, all for texts]; "
                     "messages with weight 0 or train false are context only."),
        click.option("--chat-template", metavar="FILE", type=UserPath(exists=True, dir_okay=False),
                     callback=_read_template, help="Jinja file in place of the tokenizer's own."),
        click.option("--no-eos", "eos", flag_value=False, default=True,
                     help="Do not end texts and completions with the end-of-sequence token."),
    )  # fmt: skip
    return declared(command, options)


def _read_template(context: click.Context, parameter: click.Parameter, path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", context, parameter) from error
    if not template.strip():
        raise click.BadParameter(f"{path} is empty: it must hold a Jinja template", context, parameter)
    return template


batch_size_option = click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    metavar="N",
    help="Documents per optimizer step, to be kept when packed.",
)


def shared_options(command: Command) -> Command:
    """Declare what `pack`, `stats` and `compare` have in common: what to read, and how to cut and pack it."""
    options = (
        click.option("--max-segments", type=click.IntRange(1), metavar="N", help="The most documents in a row."),
        click.option("--long", type=click.Choice(LONG_NAMES), default="split", show_default=True,
                     help="What happens to documents longer than --max-len."),
        click.option("--split", metavar="NAME",
                     help="Split of a DatasetDict, a Hub dataset, or a folder of files like train-0.parquet."),
        click.option("--input-column", default="input_ids", show_default=True, metavar="NAME",
                     help="Column with the tokens."),
        click.option("--labels-column", default="labels", show_default=True, metavar="NAME",
                     help="Column with the labels; where there is none, labels are made from the tokens."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
        click.option("--debug", is_flag=True, help="Show tracebacks."),
    )  # fmt: skip
    return declared(command, options)


@contextmanager
def one_line_errors(*, debug: bool, resumes: bool = False) -> Iterator[None]:
    """Turn a PackerError, and a lack of memory or threads, into one line and exit code 1; signals into 130 and 143.

    Args:
        debug: let them through, with their traceback.
        resumes: whether the same command goes on where it was interrupted.
    """
    code = 1
    try:
        with explained_bus_errors(), signals.raising():
            yield
    except PackerError as error:
        if debug:
            raise
        message = str(error)
    except KeyboardInterrupt as interrupt:
        if debug:
            raise
        number = interrupt.number if isinstance(interrupt, signals.Signalled) else signal.SIGINT
        code = 128 + number  # as a shell says of a process that a signal ended
        message = signals.WORDS[signal.Signals(number)]
        if resumes:
            message += "; the same command goes on where it stopped"
    except BaseException as error:  # Rust panics are no Exception
        short = shortage_behind(error)
        if debug or short is None:
            raise
        message = f"{short}; the same command goes on where it stopped" if resumes else short
    else:
        return
    click.echo(f"packer: {message}", err=True)
    sys.exit(code)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Draw a bar on stderr for each stage that takes more than a second, and print there what is logged.

    "solve auto" and "solve bfd" are the same stage, "solve", whose bar says where it is: on a terminal at once, as
    nothing is told while an algorithm works.
    """
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # a thread less; without one to be had it prints a warning
    bars: dict[str, tqdm[Any]] = {}
    units = {"write": "tok", "export": "tok", "compare": "tok", "plan": "part", "solve": "alg"}

    def draw(stage: str, done: int, total: int) -> None:
        kind = stage.split()[0]
        if kind not in bars:
            for bar in bars.values():
                bar.close()
            bars.clear()  # sources of a mixture may be decoded and tokenized in turn
            unit = units.get(kind, "B")
            delay = 0 if kind == "solve" and sys.stderr.isatty() else 1
            bars[kind] = tqdm(
                total=total, desc=stage, unit=unit, unit_scale=unit != "alg", delay=delay, file=sys.stderr
            )
        bar = bars[kind]
        bar.update(done - bar.n)
        if bar.desc != f"{stage}: ":
            bar.set_description(stage, refresh=bar.format_dict["elapsed"] >= bar.delay)

    log, handler = logging.getLogger("packer"), _Lines()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield draw
    finally:
        log.removeHandler(handler)
        for bar in bars.values():
            bar.close()


class _Lines(logging.Handler):
    """Prints what is logged as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"packer: {record.getMessage()}", err=True)
