"""Checks of combinations of options.

Messages name options as the command line does, here and in the rest of the package; see `packer.errors.python_names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer.algorithms import Algorithm, get_algorithm
from packer.column_names import ROLE, SEGMENT_COLUMNS, TOKEN_COLUMNS
from packer.errors import OptionError
from packer.options.option import TEXT_AND_CHATS, options_of

if TYPE_CHECKING:
    from packer.options.pack_options import PackOptions


def check_together(options: PackOptions) -> None:
    """Check options, each of which has a valid value, against each other.

    Raises:
        OptionError: two of them contradict each other, or one has no effect without another.
    """
    algorithm = get_algorithm(options.algorithm)
    keeps_whole = isinstance(algorithm, Algorithm) or algorithm.keeps_whole
    is_limited = isinstance(algorithm, Algorithm) and algorithm.limited
    for name in ("gap", "time_limit"):
        value, shown = getattr(options, name), options_of(type(options))[name].shown
        if value is not None and not is_limited:
            raise OptionError(f"{shown} is {value!r}, which {algorithm.name} does not use: choose --algorithm optimal")
    _check_text(options)
    _check_columns(options)
    _check_pieces(options, keeps_whole=keeps_whole)
    _check_mixture_and_groups(options, is_ordered=not isinstance(algorithm, Algorithm))
    _check_limits(options)
    if options.pairs:
        _check_pairs(options)
        if not keeps_whole:
            raise OptionError(f"pairs are never cut, and {algorithm.name} cuts documents: choose another --algorithm")


def _check_text(options: PackOptions) -> None:
    """Options of text need a tokenizer, and a tokenizer excludes options of tokens."""
    declared = options_of(type(options))
    template = options.chat_template
    if template is not None and not template.strip():
        raise OptionError("chat_template is empty: give the content of a Jinja template, or leave it out")
    if options.tokenizer is None:
        for name, option in declared.items():
            value = getattr(options, name)
            if option.heading == TEXT_AND_CHATS and value != option.default:
                raise OptionError(f"{option.shown} is {str(value)[:40]!r}, but there is no tokenizer: set --tokenizer")
        return
    if options.keep_tokens:
        raise OptionError(
            f"--keep-tokens {options.keep_tokens[0]!r}: text has no values per token; "
            "leave it out, or keep a value per document with --keep"
        )
    for name in ("input_column", "labels_column"):
        if getattr(options, name) != declared[name].default:
            raise OptionError(
                f"{declared[name].shown} is {getattr(options, name)}, but tokens and labels come from the tokenizer: "
                "name the text with --text-column, or leave --tokenizer out"
            )


def _check_columns(options: PackOptions) -> None:
    """Check that labels are there if they are needed, and that kept columns have names of their own."""
    needs_labels = {"untrained": "keep", "overlap": 0, "align": 1}
    for name, default in needs_labels.items():
        value = getattr(options, name)
        if value != default and not options.labels:
            raise OptionError(f"--{name} is {value!r}, which needs labels: leave them in")
    names = [*options.keep, *options.keep_tokens]
    for name in names:
        option = "--keep" if name in options.keep else "--keep-tokens"
        if name in (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, options.input_column, options.labels_column):
            raise OptionError(f"{option} {name!r}: the rows have a column of that name; rename it in the source")
        if names.count(name) > 1:
            raise OptionError(f"{option} {name!r}: it is named {names.count(name)} times; name it once")


def _check_pieces(options: PackOptions, *, keeps_whole: bool) -> None:
    """Check the options for pieces of split documents; `keeps_whole` algorithms cut only those longer than a row."""
    if options.overlap >= options.max_len:
        raise OptionError(f"--overlap is {options.overlap}: it must be below --max-len {options.max_len}")
    if options.overlap and options.long != "split":
        raise OptionError(
            f"--overlap is {options.overlap}, and --long is {options.long}: only pieces overlap; use --long split"
        )
    if options.truncate_side != "right" and options.long != "truncate":
        raise OptionError(f"--truncate-side is left, and --long is {options.long}: use --long truncate")
    if options.max_len % options.align:
        lower = options.max_len - options.max_len % options.align
        near = f"{lower} or {lower + options.align}" if lower else str(options.align)
        raise OptionError(
            f"--align is {options.align}, and --max-len {options.max_len} is not a multiple of it: take {near}"
        )
    if options.split_at == "turns":
        _check_turns(options, keeps_whole=keeps_whole)
    if not keeps_whole and (options.overlap or options.align > 1):
        name = "overlap" if options.overlap else "align"
        raise OptionError(
            f"--{name} is {getattr(options, name)}, and {options.algorithm} cuts documents wherever a row ends: "
            "choose another --algorithm"
        )


def _check_turns(options: PackOptions, *, keeps_whole: bool) -> None:
    if options.pairs:
        raise OptionError("--split-at is turns, and pairs are never split: leave one out")
    other = None
    if options.long != "split":
        other = f"--long {options.long}"
    elif options.overlap:
        other = f"--overlap {options.overlap}"
    elif not keeps_whole:
        other = f"--algorithm {options.algorithm}"
    if other is not None:
        raise OptionError(f"--split-at is turns, which does not go with {other}: leave one out")


def _check_mixture_and_groups(options: PackOptions, *, is_ordered: bool) -> None:
    """Check the options of mixtures and groups; an `is_ordered` algorithm keeps the order of the source."""
    if options.weights and options.pairs:
        raise OptionError("pairs are not mixed: pack each source of pairs separately")
    if not options.weights and (options.mix_unit != "tokens" or options.mix_tokens is not None):
        name = "mix_tokens" if options.mix_tokens is not None else "mix_unit"
        raise OptionError(
            f"{options_of(type(options))[name].shown} is {getattr(options, name)}, but there is no mixture: "
            "give sources with weights"
        )
    if options.mix_tokens is not None and options.mix_unit == "epochs":
        raise OptionError(
            f"--mix-tokens is {options.mix_tokens}, but weights in epochs fix the size already: choose one of the two"
        )
    if options.group_by is None:
        if options.group_mode != "together":
            raise OptionError(f"--group-mode is {options.group_mode}: name the column of groups with --group-by")
        return
    if is_ordered:
        raise OptionError(
            f"--group-by is {options.group_by!r}, and {options.algorithm} keeps the order of the source: "
            "choose another --algorithm"
        )
    if options.group_by in (*options.keep_tokens, options.input_column, options.labels_column):
        raise OptionError(f"--group-by is {options.group_by!r}, a column of tokens: name one with a value per document")


def _check_limits(options: PackOptions) -> None:
    """Limits apply to whole documents, and have their own algorithm."""
    if not options.limits:
        return
    others = {
        "--group-by": options.group_by is not None,
        "--pairs": options.pairs,
        "--split-at turns": options.split_at == "turns",
        "--overlap": options.overlap > 0,
        f"--algorithm {options.algorithm}": get_algorithm(options.algorithm).name != "auto",
    }
    for name, is_set in others.items():
        if is_set:
            raise OptionError(f"--limit does not go with {name}: leave one out")
    of_tokens = {*options.keep_tokens, options.input_column, options.labels_column, options.lengths_column}
    if set(options.limits) & of_tokens:
        raise OptionError("--limit names a column of tokens or lengths: name one with a number for each document")


def _check_pairs(options: PackOptions) -> None:
    if options.overlap:
        raise OptionError(f"--overlap is {options.overlap}, and pairs are never split: leave it out")
    if options.keep_tokens or ROLE in options.keep:
        raise OptionError(
            f"--keep: pairs cannot keep columns of tokens, and {ROLE!r} is always written; leave these out"
        )
    if (options.input_column, options.labels_column) != ("input_ids", "labels"):
        raise OptionError("pairs are read from chosen_input_ids and rejected_input_ids: leave the names of columns out")
    if options.untrained == "drop":
        raise OptionError("--untrained is drop, which may leave out one side of a pair: choose keep or error")
    if options.max_segments is not None and options.max_segments < 2:
        raise OptionError(f"--max-segments is {options.max_segments}: a pair is two segments, so allow at least 2")
    if options.max_len < 2 * options.align:
        raise OptionError(
            f"--max-len is {options.max_len}: a pair takes at least {2 * options.align}, twice the alignment"
        )
