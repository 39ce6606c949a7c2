"""The options of a pack together: which values cannot be combined, what follows from them, and how they are stored.

Messages name options as the command line does, here and in the rest of the package; see `packer.errors.python_names`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packer.algorithms import Algorithm, OrderAlgorithm, get_algorithm
from packer.column_names import ROLE, SEGMENT_COLUMNS, TOKEN_COLUMNS
from packer.errors import OptionError, PackerError
from packer.facts.json_record import read_fields
from packer.options.option import TEXT_AND_CHATS, as_json, check_options, documented, options_of, values_of
from packer.options.pack_fields import PackFields
from packer.options.values import limits_of
from packer.paths import tokenizer_name


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions(PackFields):
    """Every option that affects the bytes of a packed dataset; a PackerError says which values cannot be combined."""

    def __post_init__(self) -> None:
        check_options(self)
        for conflict in conflicts(self):
            raise OptionError(conflict)

    @property
    def kept(self) -> tuple[str, ...]:
        """All kept columns of one value per segment; with pairs also `role`, which is not in the source."""
        kept = tuple(dict.fromkeys((*self.keep, *self.limits)))
        return (*kept, ROLE) if self.pairs else kept

    @property
    def limits(self) -> dict[str, int]:
        """Largest sum in a row by column, other than tokens."""
        return limits_of(self.limit)

    @property
    def stored_keep_tokens(self) -> tuple[str, ...]:
        """The kept columns with a value per token that are stored in the shards; an index has none."""
        return () if self.index_only else self.keep_tokens

    @property
    def max_items(self) -> int | None:
        """Maximum number of items in a row; an item is a document, or a pair of two."""
        return self.max_segments // 2 if self.pairs and self.max_segments is not None else self.max_segments

    @property
    def piece_overlap(self) -> int:
        """Number of tokens that each piece of a split document repeats from the end of the piece before it."""
        return self.overlap if self.long == "split" and self.split_at == "tokens" else 0

    @property
    def keeps_order(self) -> bool:
        """Whether the algorithm keeps the order of the source."""
        return isinstance(get_algorithm(self.algorithm), OrderAlgorithm)

    @property
    def keeps_whole(self) -> bool:
        """Whether the algorithm cuts only documents longer than max_len."""
        algorithm = get_algorithm(self.algorithm)
        return isinstance(algorithm, Algorithm) or algorithm.keeps_whole

    @property
    def documents_each(self) -> int:
        """Number of documents in an item, which is 2 for preference pairs and 1 otherwise."""
        return 2 if self.pairs else 1

    @property
    def is_planned_whole(self) -> bool:
        """Whether the whole plan is held in memory, because it needs a value of each document (group or limit)."""
        return self.group_by is not None or bool(self.limit)

    @property
    def makes_own_rows(self) -> bool:
        """Whether partitions pack their own documents, neither in source order nor in groups or under limits."""
        return not self.is_planned_whole and not self.keeps_order

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns with a value per document that are read, in order to keep, limit or group by them."""
        group = () if self.group_by is None else (self.group_by,)
        return tuple(dict.fromkeys((*self.keep, *self.limits, *group)))

    def to_dict(self) -> dict[str, object]:
        """The options as stored in a manifest: `max_len`, and all others whose values are not the defaults."""
        declared = options_of(type(self))
        options = {name: getattr(self, name) for name in declared if getattr(self, name) != declared[name].default}
        if "algorithm" in options:
            options["algorithm"] = get_algorithm(self.algorithm).name
        if self.tokenizer is not None:
            options["tokenizer"] = tokenizer_name(self.tokenizer)
        return {name: as_json(value) for name, value in options.items()}

    @classmethod
    def from_dict(cls, content: object, name: str = "") -> PackOptions:
        """Read the options of a manifest; unknown ones, which later versions added, are left out.

        Raises:
            KeyError: `max_len` is missing.
            TypeError: a value has another type or is outside its limits.
            PackerError: a value cannot be combined with another.
        """
        declared = options_of(cls)
        optional = frozenset(name for name, option in declared.items() if not option.is_required)
        types = {name: option.json_type for name, option in declared.items()}
        found = read_fields(content, types, optional, name=name)
        try:
            return cls(**values_of(cls, found))
        except PackerError as error:
            raise PackerError(f"the options in the manifest are damaged: {error}") from error


def conflicts(options: PackOptions) -> Iterator[str]:
    """Yield a sentence for every conflict of options, each of which has a valid value."""
    algorithm = get_algorithm(options.algorithm)
    is_limited = isinstance(algorithm, Algorithm) and algorithm.limited
    for name in ("gap", "time_limit"):
        value, shown = getattr(options, name), options_of(PackOptions)[name].shown
        if value is not None and not is_limited:
            yield f"{shown} is {value!r}, which {algorithm.name} does not use: choose --algorithm optimal"
    yield from _of_text(options)
    yield from _of_columns(options)
    yield from _of_long_documents(options)
    yield from _of_mixtures_and_groups(options, is_ordered=not isinstance(algorithm, Algorithm))
    yield from _of_limits(options)
    if options.pairs:
        yield from _of_pairs(options)
        if not options.keeps_whole:
            yield f"pairs are never cut, and {algorithm.name} cuts documents: choose another --algorithm"


def _of_text(options: PackOptions) -> Iterator[str]:
    """Options of text need a tokenizer, and a tokenizer excludes options of tokens."""
    declared = options_of(PackOptions)
    if options.chat_template is not None and not options.chat_template.strip():
        yield "chat_template is empty: give the content of a Jinja template, or leave it out"
    if options.tokenizer is None:
        for name, option in declared.items():
            value = getattr(options, name)
            if option.heading == TEXT_AND_CHATS and value != option.default:
                yield f"{option.shown} is {str(value)[:40]!r}, but there is no tokenizer: set --tokenizer"
        return
    if options.keep_tokens:
        yield (
            f"--keep-tokens {options.keep_tokens[0]!r}: text has no values per token; "
            "leave it out, or keep a value per document with --keep"
        )
    for name in ("input_column", "labels_column"):
        if getattr(options, name) != declared[name].default:
            yield (
                f"{declared[name].shown} is {getattr(options, name)}, but tokens and labels come from the tokenizer: "
                "name the text with --text-column, or leave --tokenizer out"
            )


def _of_columns(options: PackOptions) -> Iterator[str]:
    """Labels are there if they are needed, and kept columns have names of their own."""
    needs_labels = {"untrained": "keep", "overlap": 0, "align": 1}
    for name, default in needs_labels.items():
        value = getattr(options, name)
        if value != default and not options.labels:
            yield f"--{name} is {value!r}, which needs labels: leave them in"
    names = [*options.keep, *options.keep_tokens]
    for name in names:
        option = "--keep" if name in options.keep else "--keep-tokens"
        if name in (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, options.input_column, options.labels_column):
            yield f"{option} {name!r}: the rows have a column of that name; rename it in the source"
        if names.count(name) > 1:
            yield f"{option} {name!r}: it is named {names.count(name)} times; name it once"


def _of_long_documents(options: PackOptions) -> Iterator[str]:
    """Options for pieces of split documents."""
    if options.overlap >= options.max_len:
        yield f"--overlap is {options.overlap}: it must be below --max-len {options.max_len}"
    if options.overlap and options.long != "split":
        yield f"--overlap is {options.overlap}, and --long is {options.long}: only pieces overlap; use --long split"
    if options.truncate_side != "right" and options.long != "truncate":
        yield f"--truncate-side is left, and --long is {options.long}: use --long truncate"
    if options.max_len % options.align:
        lower = options.max_len - options.max_len % options.align
        near = f"{lower} or {lower + options.align}" if lower else str(options.align)
        yield f"--align is {options.align}, and --max-len {options.max_len} is not a multiple of it: take {near}"
    if options.split_at == "turns":
        if options.pairs:
            yield "--split-at is turns, and pairs are never split: leave one out"
        others = {
            f"--long {options.long}": options.long != "split",
            f"--overlap {options.overlap}": options.overlap > 0,
            f"--algorithm {options.algorithm}": not options.keeps_whole,
        }
        for other, is_set in others.items():
            if is_set:
                yield f"--split-at is turns, which does not go with {other}: leave one out"
    for name, default in {"overlap": 0, "align": 1}.items():
        value = getattr(options, name)
        if value != default and not options.keeps_whole:
            yield (
                f"--{name} is {value}, and {options.algorithm} cuts documents wherever a row ends: "
                "choose another --algorithm"
            )


def _of_mixtures_and_groups(options: PackOptions, *, is_ordered: bool) -> Iterator[str]:
    """Options of mixtures and groups; an `is_ordered` algorithm keeps the order of the source."""
    if options.weights and options.pairs:
        yield "pairs are not mixed: pack each source of pairs separately"
    for name, default in {"mix_tokens": None, "mix_unit": "tokens"}.items():
        value, shown = getattr(options, name), options_of(PackOptions)[name].shown
        if value != default and not options.weights:
            yield f"{shown} is {value}, but there is no mixture: give sources with weights"
    if options.mix_tokens is not None and options.mix_unit == "epochs":
        yield (
            f"--mix-tokens is {options.mix_tokens}, but weights in epochs fix the size already: choose one of the two"
        )
    if options.group_by is None:
        if options.group_mode != "together":
            yield f"--group-mode is {options.group_mode}: name the column of groups with --group-by"
        return
    if is_ordered:
        yield (
            f"--group-by is {options.group_by!r}, and {options.algorithm} keeps the order of the source: "
            "choose another --algorithm"
        )
    if options.group_by in (*options.keep_tokens, options.input_column, options.labels_column):
        yield f"--group-by is {options.group_by!r}, a column of tokens: name one with a value per document"


def _of_limits(options: PackOptions) -> Iterator[str]:
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
            yield f"--limit does not go with {name}: leave one out"
    of_tokens = {*options.keep_tokens, options.input_column, options.labels_column, options.lengths_column}
    if set(options.limits) & of_tokens:
        yield "--limit names a column of tokens or lengths: name one with a number for each document"


def _of_pairs(options: PackOptions) -> Iterator[str]:
    if options.overlap:
        yield f"--overlap is {options.overlap}, and pairs are never split: leave it out"
    if options.keep_tokens or ROLE in options.keep:
        yield f"--keep: pairs cannot keep columns of tokens, and {ROLE!r} is always written; leave these out"
    if (options.input_column, options.labels_column) != ("input_ids", "labels"):
        yield "pairs are read from chosen_input_ids and rejected_input_ids: leave the names of columns out"
    if options.untrained == "drop":
        yield "--untrained is drop, which may leave out one side of a pair: choose keep or error"
    if options.max_segments is not None and options.max_segments < 2:
        yield f"--max-segments is {options.max_segments}: a pair is two segments, so allow at least 2"
    if options.max_len < 2 * options.align:
        yield f"--max-len is {options.max_len}: a pair takes at least {2 * options.align}, twice the alignment"
