"""What options may be, and which of them do not go together.

Messages call options as the command line does, here as everywhere; see `packer.errors.python_names`.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING

from packer.algorithms import Algorithm, get_algorithm
from packer.errors import PackerError
from packer.plan.groups import GROUP_MODES
from packer.plan.mixture_shares import MIX_UNITS
from packer.plan.segments import LONG_POLICIES, TRUNCATE_SIDES
from packer.shards.columns import ROLE, SEGMENT_COLUMNS, TOKEN_COLUMNS
from packer.text import TRAIN_ON

if TYPE_CHECKING:
    from packer.options.pack_options import PackOptions

EMITTED = ("labels", "position_ids")
SPLIT_AT = ("tokens", "turns")
UNTRAINED = ("keep", "drop", "error")
TRAIN_CHOICES = tuple(dict.fromkeys(chain.from_iterable(TRAIN_ON.values())))
OF_TEXT = ("text_column", "train_on", "chat_template", "eos")
"""Options of sources of text."""

_LARGEST = 2**31 - 1
_LONGEST_ROW = 2**24  # 16 million tokens: what is kept per length (histograms) stays within memory


def check(options: PackOptions) -> None:
    """Raise a PackerError where an option is outside its limits, or does not go with another."""
    _check_text(options)
    algorithm = get_algorithm(options.algorithm)
    for name, most in (("gap", 1.0), ("time_limit", float("inf"))):
        limit = getattr(options, name)
        if limit is None:
            continue
        if not (isinstance(algorithm, Algorithm) and algorithm.limited):
            raise PackerError(
                f"{_option(name)} is {limit!r}, and {algorithm.name} has no use for it: choose --algorithm optimal"
            )
        if type(limit) not in (int, float) or not 0 <= limit <= most:  # NaN is not, either
            raise PackerError(
                f"{_option(name)} is {limit!r}: it must be a number from 0" + (" to 1" if most == 1 else "")
            )
    if options.long not in LONG_POLICIES:
        raise PackerError(f"--long is {options.long!r}: choose one of {', '.join(LONG_POLICIES)}")
    if options.untrained not in UNTRAINED:
        raise PackerError(f"untrained is {options.untrained!r}: choose one of {', '.join(UNTRAINED)}")
    if options.untrained != "keep" and not options.labels:
        raise PackerError(f"untrained is {options.untrained!r}: only labels say what is trained; leave them in")
    if options.truncate_side not in TRUNCATE_SIDES:
        raise PackerError(f"--truncate-side is {options.truncate_side!r}: choose left or right")
    for name, value, least, most in (
        ("max_len", options.max_len, 1, _LONGEST_ROW),
        ("overlap", options.overlap, 0, _LARGEST),
        ("align", options.align, 1, _LARGEST),
        ("max_segments", options.max_segments, 1, _LARGEST),
        ("seed", options.seed, 0, 2**63 - 1),
        ("pad_id", options.pad_id, 0, _LARGEST),
        ("shard_size", options.shard_size, 1, 2**63 - 1),
    ):
        if value is None and name in ("max_segments", "pad_id"):
            continue
        if type(value) is not int or not least <= value <= most:
            raise PackerError(f"{_option(name)} is {value!r}: it must be a whole number from {least} to {most}")
    _check_pieces(options, keeps_whole=isinstance(algorithm, Algorithm) or algorithm.keeps_whole)
    _check_mixture(options)
    _check_groups(options, is_ordered=not isinstance(algorithm, Algorithm))
    if options.pairs and not (isinstance(algorithm, Algorithm) or algorithm.keeps_whole):
        raise PackerError(f"pairs are never cut, and {algorithm.name} cuts documents: choose another --algorithm")


def _check_groups(options: PackOptions, *, is_ordered: bool) -> None:
    """Check the options that say which documents belong together."""
    if options.group_mode not in GROUP_MODES:
        raise PackerError(f"group_mode is {options.group_mode!r}: choose together or apart")
    if options.group_by is not None and is_ordered:
        raise PackerError(
            f"--group-by is {options.group_by!r}, and {options.algorithm} keeps the order of the source: "
            "choose another --algorithm"
        )
    if options.group_by in (*options.keep_tokens, options.input_column, options.labels_column):
        raise PackerError(f"--group-by is {options.group_by!r}, a column of tokens: name one with a value per document")
    if options.group_by is None and options.group_mode != "together":
        raise PackerError(f"group_mode is {options.group_mode}: say with group_by which column makes the groups")
    if not options.pairs:
        return
    if options.long == "split":
        raise PackerError("--long is split, and pairs are never split: choose --long truncate, drop or error")
    if options.keep_tokens or ROLE in options.keep:
        raise PackerError(f"--keep: pairs have no column per token, and {ROLE!r} is written anyway; leave these out")
    if (options.input_column, options.labels_column) != ("input_ids", "labels"):
        raise PackerError("pairs are read from chosen_input_ids and rejected_input_ids: name no other column")
    if options.untrained == "drop":
        raise PackerError("untrained is drop, which may leave out one side of a pair: choose keep or error")
    if options.max_segments is not None and options.max_segments < 2:
        raise PackerError(f"--max-segments is {options.max_segments}: a pair is two segments; allow 2 at least")
    if options.max_len < 2 * options.align:
        raise PackerError(
            f"--max-len is {options.max_len}: a pair takes {2 * options.align} at least, twice the alignment"
        )


def _check_mixture(options: PackOptions) -> None:
    """Check the weights of sources, and what they are weights of."""
    unit, tokens = options.mix_unit, options.mix_tokens
    for weight in options.weights:
        if type(weight) not in (int, float) or not 0 < weight < float("inf"):  # NaN is not, either
            raise PackerError(f"a source has weight {weight!r}: it must be a number above 0; leave out what is 0")
    if unit not in MIX_UNITS:
        raise PackerError(f"--mix-unit is {unit!r}: choose one of {', '.join(MIX_UNITS)}")
    if options.weights and options.pairs:
        raise PackerError("pairs are not mixed: pack each source of pairs by itself")
    if not options.weights and (unit != "tokens" or tokens is not None):
        name = "mix_tokens" if tokens is not None else "mix_unit"
        raise PackerError(
            f"{_option(name)} is {getattr(options, name)}, and there is no mixture: give sources with weights"
        )
    if tokens is None:
        return
    if type(tokens) is not int or not 1 <= tokens < 2**63:
        raise PackerError(f"--mix-tokens is {tokens!r}: it must be a whole number from 1 to {2**63 - 1}")
    if unit == "epochs":
        raise PackerError(
            f"--mix-tokens is {tokens}, and weights are epochs, which say it already: choose one of the two"
        )


def _check_text(options: PackOptions) -> None:
    """Check the options of text: they need a tokenizer, which has no use for those of tokens."""
    defaults = {field.name: field.default for field in fields(options)}
    given = next((name for name in OF_TEXT if getattr(options, name) != defaults[name]), None)
    if given and options.tokenizer is None:
        value = str(getattr(options, given))[:40]
        raise PackerError(f"{_option(given)} is {value!r}, and there is no tokenizer: give one by --tokenizer")
    template = options.chat_template
    if template is not None and not (isinstance(template, str) and template.strip()):
        what = "empty" if isinstance(template, str) else f"a {type(template).__name__}"
        raise PackerError(f"chat_template is {what}: give the content of a Jinja template, or leave it out")
    if options.train_on not in (None, *TRAIN_CHOICES):
        raise PackerError(f"--train-on is {options.train_on!r}: choose one of {', '.join(TRAIN_CHOICES)}")
    if options.tokenizer is not None and options.keep_tokens:
        raise PackerError(
            f"--keep-tokens {options.keep_tokens[0]!r}: text has no values per token, the tokenizer makes the tokens; "
            "leave it out, or keep a value per document with --keep"
        )
    if options.tokenizer is not None and options.pairs:
        raise PackerError("pairs are read as tokens, and there is a tokenizer: tokenize both answers first")
    for name, usual in (("input_column", "input_ids"), ("labels_column", "labels")):
        if options.tokenizer is not None and getattr(options, name) != usual:
            raise PackerError(
                f"{_option(name)} is {getattr(options, name)}, and there is a tokenizer, which makes tokens "
                "and labels of text: name the text with --text-column, or leave --tokenizer out"
            )


def _check_pieces(options: PackOptions, *, keeps_whole: bool) -> None:
    """Check the options that shape pieces of documents against each other."""
    given = [*options.keep, *options.keep_tokens]
    for name in given:
        if name in (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, options.input_column, options.labels_column):
            raise PackerError(f"--keep {name!r}: the rows have a column of that name; rename it in the source")
        if given.count(name) > 1:
            raise PackerError(f"--keep {name!r}: it is given {given.count(name)} times; give it once")
    if options.overlap >= options.max_len:
        raise PackerError(f"--overlap is {options.overlap}: it must be below --max-len {options.max_len}")
    if options.overlap and options.long != "split":
        raise PackerError(
            f"--overlap is {options.overlap}, and --long is {options.long}: only pieces overlap; use --long split"
        )
    if options.split_at not in SPLIT_AT:
        raise PackerError(f"--split-at is {options.split_at!r}: choose tokens or turns")
    if options.pairs and options.split_at == "turns":
        raise PackerError("--split-at is turns, and pairs are never split: leave one out")
    if options.split_at == "turns" and (options.long != "split" or options.overlap or not keeps_whole):
        other = (
            f"--long {options.long}"
            if options.long != "split"
            else f"--overlap {options.overlap}"
            if options.overlap
            else ""
        )
        raise PackerError(
            f"--split-at is turns, which does not go with {other or '--algorithm ' + options.algorithm}: leave one out"
        )
    if options.truncate_side != "right" and options.long != "truncate":
        raise PackerError(f"--truncate-side is left, and --long is {options.long}: use --long truncate")
    if options.max_len % options.align:
        lower = options.max_len - options.max_len % options.align
        near = f"{lower} or {lower + options.align}" if lower else str(options.align)
        raise PackerError(f"--align is {options.align}, and --max-len {options.max_len} no multiple of it: take {near}")
    if not options.labels and (options.overlap or options.align > 1):
        name = "overlap" if options.overlap else "align"
        raise PackerError(f"--{name} is {getattr(options, name)}: only labels say what is not trained; leave them in")
    if not keeps_whole and (options.overlap or options.align > 1):
        name = "overlap" if options.overlap else "align"
        raise PackerError(
            f"--{name} is {getattr(options, name)}, and {options.algorithm} cuts documents wherever a row ends: "
            "choose another --algorithm"
        )


def _option(name: str) -> str:
    """A field as the command line calls it; Python's functions translate the whole message."""
    return name if name == "eos" else "--" + name.replace("_", "-")  # the command has --no-eos alone
