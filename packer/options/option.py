"""Options: how they are declared, checked and converted.

A field of a dataclass, such as `PackOptions`, declares an option:

    max_segments: int | None = option(None, "Maximum number of documents in a row.", ROWS, least=1)

The command line, the checks of values, the manifest and the reference pages all follow from `options_of`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from packer.errors import OptionError, PackerError, in_python
from packer.json_records import FLAG, TEXT, ValueKind, number, or_null, whole_number
from packer.stores import RemotePath, is_remote
from packer.stores.paths import expanded

REQUIRED = "Required"
READING = "Reading"
TEXT_AND_CHATS = "Text and chats"
ROWS = "Rows"
LONG = "Long documents"
GROUPS = "Documents that belong together"
OUTPUT = "Output"
RANKS = "Several processes"
GENERAL = "General"

HEADINGS = (REQUIRED, READING, TEXT_AND_CHATS, ROWS, LONG, GROUPS, OUTPUT, RANKS, GENERAL)
"""Headings under which `--help` and docs/reference/commands/ list options, in this order."""

# Types of choices. The declaration of each option explains its choices.
LongPolicy = Literal["split", "truncate", "drop", "error"]
SplitAt = Literal["exchanges", "tokens"]
Untrained = Literal["keep", "keep-all", "drop", "error"]
OnError = Literal["error", "skip"]
Document = Literal["document", "sequence"]
TokenType = Literal["uint8", "uint16", "uint32", "int32", "int64"]
TrainOn = Literal["all", "completion", "assistant", "last", "each-answer"]
AnswerPart = Literal["reasoning", "tool_calls"]
AddedColumn = Literal["position_ids"]
WeightsPer = Literal["document", "token"]
Compression = Literal["zstd", "snappy", "none"]

BUILT_IN_TEMPLATES = ("chatml", "gemma3", "glm4moe", "llama3", "qwen3")  # files of packer/text/built_in_templates

_LARGEST = 2**63 - 1
_PATH = ValueKind("a path", lambda value: isinstance(value, (str, Path, RemotePath)))


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option. `options_of` adds its name and type."""

    help: str
    """One sentence. It names other options as on the command line; see `packer.errors.python_names`."""

    heading: str
    """Heading under which `--help` and the reference list it: one of `HEADINGS`."""

    least: float = 0
    most: float | None = None
    """Maximum of a number. None: the maximum of its type (2**63 - 1 for integers, no maximum for floats)."""

    choices: tuple[str, ...] = ()
    """Allowed values; empty if all values are allowed. The values of a `Literal` type need not be declared."""

    metavar: str | None = None
    """Name of the value in `--help`; by default N for an integer, and NAME for a string."""

    flags: tuple[str, ...] = ()
    """Names on the command line, the long one last; by default --max-len, or --no-eos if the default is True."""

    off: str | None = None
    """Help of `--no-NAME`, which switches off an option whose default is True."""

    default_words: str | None = None
    """Description of the default, if the value is not clear by itself."""

    convert: Callable[[Any], Any] | None = None
    """Function that converts other forms of the value, on the command line and in Python."""

    commands: tuple[str, ...] = ("pack", "stats")
    """Commands that have the option; empty if other options determine its value."""

    name: str = ""
    """Name of the field, and of the keyword argument in Python."""

    type: type = str
    """Type of a value, or of each value in a list: bool, int, float, str or Path."""

    is_list: bool = False
    is_optional: bool = False
    default: object = ...
    """Default value; `...` if the option is required."""

    @property
    def shown(self) -> str:
        """Name in error messages: the command-line name, unless that is "--no-NAME" or does not exist."""
        return self.name if self.default is True or not self.commands else self.flags[-1]

    @property
    def is_required(self) -> bool:
        """Whether a value must be given."""
        return self.default is ...

    @property
    def limits(self) -> tuple[float, float]:
        """Minimum and maximum of a number, both inclusive."""
        largest: float = _LARGEST if self.type is int else sys.float_info.max
        return self.least, largest if self.most is None else self.most

    @property
    def kind(self) -> ValueKind:
        """Type, limits or choices of a value (of each value in a list), also in words."""
        if self.choices:
            return ValueKind(
                f"one of {', '.join(self.choices)}", lambda value: type(value) is str and value in self.choices
            )
        if self.type is int:
            return whole_number(*map(int, self.limits))
        if self.type is float:
            return number(*self.limits)
        return {bool: FLAG, str: TEXT, Path: _PATH}[self.type]

    @property
    def json_type(self) -> object:
        """Type of the value in a manifest. A choice may be any string, because a later version may add choices."""
        kind = TEXT if self.choices else self.kind
        if self.is_list:
            return tuple[Annotated[Any, kind], ...]
        return or_null(kind) if self.is_optional else kind

    def check(self, value: object) -> None:
        """Raise an OptionError if a value has another type or is outside the limits."""
        if self.is_optional and value is None:
            return
        if self.is_list and not isinstance(value, tuple):
            raise OptionError(f"{self.shown} is {value!r}: it must be a list")
        for one in value if isinstance(value, tuple) and self.is_list else (value,):
            if not self.kind.fits(one):
                remedy = f"choose {self.kind.name}" if self.choices else f"it must be {self.kind.name}"
                raise OptionError(f"{self.shown} is {one!r}: {remedy}")

    def converted(self, value: object) -> Any:
        """Return the value of the field, converted from other accepted forms, such as a list instead of a tuple."""
        if getattr(value, "shape", None) == ():  # a number of NumPy or torch
            value = value.item()  # type: ignore[attr-defined]
        if self.convert is not None:
            value = self.convert(value)
        return tuple(value) if self.is_list and isinstance(value, list) else value


def check_options(options: object) -> None:
    """Check the value of every option that the class of `options` declares; see `Option.check`."""
    for name, option in options_of(type(options)).items():
        option.check(getattr(options, name))


def values_of(declaration: type, values: Mapping[str, object]) -> dict[str, Any]:
    """Convert the values for fields of a dataclass of options; return them as its keyword arguments."""
    declared = options_of(declaration)
    names = [each.name for each in fields(declaration) if each.name in values]
    return {name: declared[name].converted(values[name]) if name in declared else values[name] for name in names}


def described(options: Iterable[Option]) -> str:
    """Return names and help of options as lines of a Python docstring under "Args"."""
    lines = []
    for each in options:
        text = f"{each.name}: {each.help}"
        if each.choices:
            text += f" One of: {', '.join(each.choices)}."
        if each.default_words is not None:
            text += f" By default: {each.default_words}."
        lines.append(fill(in_python(text), 120, initial_indent=4 * " ", subsequent_indent=8 * " "))
    return "\n".join(lines)


def option(default: Any, help: str, heading: str, **settings: Any) -> Any:
    """Return a dataclass field that declares an option. `settings` are fields of `Option`.

    The option is required if its default is `...`.
    """
    declared = Option(help, heading, default=default, **settings)
    return field(default=MISSING if default is ... else default, metadata={"option": declared})


def options_of(declaration: type) -> dict[str, Option]:
    """Return the options that a dataclass declares with `option`, by name."""
    return _declared(declaration)


@cache
def _declared(declaration: type) -> dict[str, Option]:
    hints = get_type_hints(declaration)
    return {
        each.name: _completed(each.metadata["option"], each.name, hints[each.name])
        for each in fields(declaration)
        if "option" in each.metadata
    }


def _completed(declared: Option, name: str, hint: Any) -> Option:
    """Return an option with its name and type, and the settings that follow from these."""
    is_optional = type(None) in get_args(hint)
    if is_optional:
        hint = next(one for one in get_args(hint) if one is not type(None))
    is_list = get_origin(hint) is tuple
    if is_list:
        hint = get_args(hint)[0]
    is_literal = get_origin(hint) is Literal
    choices = get_args(hint) if is_literal else declared.choices
    return replace(
        declared,
        name=name,
        type=str if is_literal else hint,
        is_list=is_list,
        is_optional=is_optional,
        choices=choices,
        metavar=declared.metavar or (None if choices else {int: "N", str: "NAME"}.get(hint)),
        flags=declared.flags or (f"--{'no-' if declared.default is True else ''}{name.replace('_', '-')}",),
    )


# ---- conversion of values ----


def as_length(tokens: int | str) -> int | str:
    """Convert a length in tokens; k stands for 1,024, as in the names of models: "4k" -> 4096, "0.5k" -> 512."""
    if isinstance(tokens, str) and "," in tokens:
        raise OptionError(f"{tokens} are several lengths, and rows have one: packer stats compares several")
    return _multiple(tokens, {"k": 1 << 10, "m": 1 << 20})


def as_lengths(lengths: int | str | Sequence[int | str] | None) -> tuple[int, ...]:
    """Convert row lengths to distinct lengths in ascending order: "4k,512" -> (512, 4096); None -> ()."""
    words = lengths.split(",") if isinstance(lengths, str) else lengths
    if isinstance(lengths, str) and re.fullmatch(r"\d{1,3}(,\d{3})+", lengths):
        whole = int(lengths.replace(",", ""))
        if whole.bit_count() == 1 or re.search(",0", lengths):
            raise OptionError(f"{lengths} are {len(lengths.split(','))} lengths: write {whole} for one")
    try:
        found = () if words is None else (words,) if isinstance(words, int) else words
        if words == []:  # an empty list, unlike (), the default of the command
            raise ValueError
        return tuple(sorted({int(as_length(word)) for word in found}))
    except ValueError:
        raise OptionError(
            f"{lengths!r} is not a list of row lengths: write 4096, or 512,1024,2048 for several"
        ) from None


def as_amount(tokens: int | str) -> int | str:
    """Convert a number of tokens in powers of 1,000: "1.5B" -> 1,500,000,000."""
    return _multiple(tokens, {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12})


def as_share(share: float | str) -> float | str:
    """Convert a share: "0.5%" -> 0.005, "0.1" -> 0.1."""
    if isinstance(share, str) and (found := re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", share)):
        return float(Decimal(found[1]) / (100 if found[2] else 1))
    return share


def _multiple(value: int | str, units: dict[str, int]) -> int | str:
    """Convert a number with a unit to an integer. Returns anything else unchanged, for `Option.check` to refuse."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([a-z]?)\s*", value.lower())
    if found is not None and found[2] in units:
        number = Decimal(found[1]) * units[found[2]]
        return int(number) if number == int(number) else value
    try:
        return int(value)
    except ValueError:
        return value


def as_path(path: str | Path | None) -> str | None:
    """Convert a path to a string. Raises an OptionError for a tokenizer object."""
    if hasattr(path, "save_pretrained"):
        raise OptionError("a tokenizer is named by its folder or Hub id: save an object by save_pretrained(folder)")
    if path is not None and not isinstance(path, (str, Path)):
        raise OptionError(f"{path!r} is not a path")
    return str(path) if isinstance(path, Path) else path


def as_template(template: str | Path | None) -> str | Path | None:
    """Return a built-in template's name or a template's text, which contains "{", unchanged; otherwise read a file.

    Raises a PackerError if the file cannot be read or contains no "{".
    """
    is_text = isinstance(template, str) and ("{" in template or template in BUILT_IN_TEMPLATES)
    if is_text or not isinstance(template, (str, Path)):
        return template
    remedy = f"name a file, or {', '.join(BUILT_IN_TEMPLATES)}"
    if is_remote(template):
        raise PackerError(f"{template} is in object storage: copy it to a local file")
    try:
        content = Path(expanded(template)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackerError(f"{str(template)[:80]!r} cannot be read as a chat template: {reason}; {remedy}") from error
    if "{" not in content:
        what = "has no '{'" if content.strip() else "is empty"
        raise PackerError(f"{template} {what}: it must hold a Jinja template; {remedy}")
    return content


def as_vocab_size(size: int | str | Path) -> Any:
    """Return `vocab_size` in a config.json, given the file or its folder. Converts a number in a string to an integer.

    Raises an OptionError if there is no such file, or if it has no `vocab_size`.
    """
    if not isinstance(size, (str, Path)) or str(size).isdecimal():
        return int(size) if isinstance(size, str) else size
    path = Path(expanded(size))
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_bytes())
        return (config | (config.get("text_config") or {}))["vocab_size"]
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no vocab_size"
        raise OptionError(f"{path} is no config.json ({reason}): give a number, or a config with vocab_size") from error


def as_engine(engine: str) -> str:
    """Check the name of an engine: threads, ray or ray:ADDRESS."""
    name, colon, address = str(engine).partition(":")
    if (name, colon) not in (("threads", ""), ("ray", ""), ("ray", ":")) or (colon and not address):
        raise OptionError(f"{str(engine)!r} is not an engine: write threads, ray or ray:ADDRESS")
    return engine


def as_ranks(ranks: str | None) -> str | None:
    """Check a rank and the number of ranks, as in 0/4, or the word env."""
    if ranks in (None, "env"):
        return ranks
    rank, _, count = str(ranks).partition("/")
    if not rank.isdecimal() or not count.isdecimal() or int(rank) >= int(count):
        raise OptionError(f"{ranks!r} is no rank: write R/N with R from 0 to N - 1, as in 0/4, or env")
    return ranks


def as_token_columns(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Convert the names of columns to add. Labels are written anyway: "labels,position_ids" -> ("position_ids",)."""
    return tuple(name for name in as_names(columns) if name != "labels")


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Convert names separated by commas: "reasoning,tool_calls" -> ("reasoning", "tool_calls")."""
    found = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(found, Sequence):
        raise OptionError(f"{names!r} is not a list of names: write them with commas between them")
    return tuple(dict.fromkeys(name for name in found if name))


_DECIMAL = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = _DECIMAL | {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def as_bytes(size: int | str) -> int:
    """Convert a size to bytes: "512MB" -> 512,000,000, "2GiB" -> 2,147,483,648. Other text is an OptionError."""
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", size.upper())
    unit = match[2] if match else "?"
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if match is None or (unit not in _UNITS and unit != "B"):
        raise OptionError(f"{size!r} is not a size: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(Decimal(match[1]) * _UNITS.get(unit, 1))


def byte_size(size: int) -> str:
    """Format bytes in powers of 1,000, in the form that `--shard-size 512MB` accepts: 1234567 -> 1.2 MB."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"
