"""The options of a pack together: which values cannot be combined, what follows from them, and how they are stored.

Messages name options as the command line does, here and in the rest of the package; see `packer.errors.python_names`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from packer.algorithms import Algorithm, OrderAlgorithm, get_algorithm
from packer.column_names import ANSWER, RECORD_IDS, SEGMENT_COLUMNS, TOKEN_COLUMNS, TREE
from packer.errors import OptionError, PackerError
from packer.json_record import read_fields
from packer.options.declarations import INT32, PackFields
from packer.options.option import TEXT_AND_CHATS, check_options, options_of, values_of
from packer.paths import tokenizer_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions(PackFields):
    """Every option that affects the bytes of a packed dataset; a PackerError says which values cannot be combined."""

    def __post_init__(self) -> None:
        check_options(self)
        for conflict in conflicts(self):
            raise OptionError(conflict)

    @property
    def kept(self) -> tuple[str, ...]:
        """All kept columns of one value per segment, and those that are not in the source, such as `tree`."""
        kept = tuple(dict.fromkeys((*self.keep, *self.limits)))
        return (*kept, *self.made_columns)

    @property
    def made_columns(self) -> tuple[str, ...]:
        """The columns with a value per segment that are made when the source is read."""
        made = {
            RECORD_IDS: self.numbers_records,
            ANSWER: self.numbers_records,
            TREE: self.has_trees,
        }
        return tuple(name for name, is_made in made.items() if is_made)

    @property
    def has_trees(self) -> bool:
        """Whether the documents of a record are joined to trees, in which the beginnings that they share stand once."""
        return self.pairs or self.share_prefixes

    @property
    def numbers_records(self) -> bool:
        """Whether a record makes any number of documents, so that segments name the record that they come from."""
        return self.train_on == "each-answer" or self.share_prefixes

    @property
    def hashes_records(self) -> bool:
        """Whether documents have the hash of their record, which decides whether all of them are held out."""
        return self.numbers_records and self.holdout is not None

    @property
    def limits(self) -> dict[str, int]:
        """Largest sum in a row by column, other than tokens; an OptionError says what is no limit."""
        found: dict[str, int] = {}
        for limit in self.limit:
            column, _, most = limit.rpartition(":")
            if not column or not most.isdecimal() or not 1 <= int(most) <= INT32:
                remedy = f"give a column and the most that a row may hold, 1 to {INT32}, as in images:16"
                raise OptionError(f"--limit is {limit!r}: {remedy}")
            if column in found:
                raise OptionError(f"--limit names {column!r} twice: give one limit for each column")
            found[column] = int(most)
        return found

    @property
    def stored_keep_tokens(self) -> tuple[str, ...]:
        """The kept columns with a value per token that are stored in the shards; an index has none."""
        return () if self.index_only else self.keep_tokens

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
    def is_planned_whole(self) -> bool:
        """Whether the whole plan is held in memory, because it needs a value of each document (group or limit)."""
        return self.group_by is not None or bool(self.limit)

    @property
    def makes_own_rows(self) -> bool:
        """Whether partitions pack their own documents, neither in source order nor in groups or under limits."""
        return not self.is_planned_whole and not self.keeps_order

    @property
    def reads_to_cut(self) -> bool:
        """Whether segments depend on turns, labels or contents of documents, and not on lengths alone."""
        return self.split_at != "tokens" or self.untrained in ("drop", "error") or self.holdout is not None

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns with a value per document that are read, in order to keep, limit or group by them."""
        group = () if self.group_by is None else (self.group_by,)
        return tuple(dict.fromkeys((*self.keep, *self.limits, *group)))

    def to_dict(self) -> dict[str, object]:
        """The options as stored in a manifest: `max_len`, and all others whose values are not the defaults."""
        options = PackFields.to_dict(self)
        if "algorithm" in options:
            options["algorithm"] = get_algorithm(self.algorithm).name
        if self.tokenizer is not None:
            options["tokenizer"] = tokenizer_name(self.tokenizer)
        return options

    @classmethod
    def from_dict(cls, content: object, name: str = "") -> PackOptions:
        """Read the options of a manifest; unknown ones, which later versions added, are left out.

        Raises:
            KeyError: `max_len` is missing.
            TypeError: a value has another type, is outside its limits, or cannot be combined with another.
        """
        declared = options_of(cls)
        optional = frozenset(name for name, option in declared.items() if not option.is_required)
        types = {name: option.json_type for name, option in declared.items()}
        found = read_fields(content, types, optional, name=name)
        try:
            return cls(**values_of(cls, found))
        except PackerError as error:
            raise TypeError(f"the options in the manifest are damaged: {error}") from error


_sentences = [f"    {name}: {option.help}" for name, option in options_of(PackOptions).items()]
PackOptions.__doc__ = "\n".join([f"{PackOptions.__doc__}\n\nAttributes:", *_sentences])


Conflict = tuple[Sequence[str], str]
"""Options that must have their defaults, with the reason why others are in conflict, and the remedy."""


def conflicts(options: PackOptions) -> Iterator[str]:
    """Yield a sentence for every conflict of options, each of which has a valid value."""
    declared = options_of(PackOptions)
    for names, reason in chain(_conflicts_of_documents(options), _conflicts_of_rows(options)):
        for option in (declared[name] for name in names):
            value = getattr(options, option.name)
            if value != option.default:
                text = ", ".join(map(str, value)) if option.is_list else str(value)
                is_free = option.type is str and not option.is_choice
                yield f"{option.shown} is {repr(text[:40]) if is_free else text}{reason}"
    names = [*options.keep, *options.keep_tokens]
    taken = (*TOKEN_COLUMNS, *SEGMENT_COLUMNS, options.input_column, options.labels_column, *options.made_columns)
    for name in names:
        of = "--keep" if name in options.keep else "--keep-tokens"
        if name in taken:
            yield f"{of} {name!r}: the rows have a column of that name; rename it in the source"
        if names.count(name) > 1:
            yield f"{of} {name!r}: it is named {names.count(name)} times; name it once"


def _conflicts_of_documents(options: PackOptions) -> Iterator[Conflict]:
    """Yield conflicts of text, labels and long documents."""
    max_len, long, algorithm = options.max_len, options.long, options.algorithm
    if options.chat_template is not None and not options.chat_template.strip():
        yield ["chat_template"], ", which is empty: give the content of a Jinja template, or leave it out"
    if options.tokenizer is None:
        text = [name for name, option in options_of(PackOptions).items() if option.heading == TEXT_AND_CHATS]
        yield text, ", but there is no tokenizer: set --tokenizer"
    else:
        remedy = "name the text with --text-column, or leave --tokenizer out"
        yield ["input_column", "labels_column"], f", but tokens and labels come from the tokenizer: {remedy}"
        remedy = "leave it out, or keep a value per document with --keep"
        yield ["keep_tokens"], f", and text has no values per token: {remedy}"
    if options.holdout is not None and options.holdout >= 1:
        yield ["holdout"], ": give a share below 1, such as 0.5%"
    if options.lengths_column is not None:
        yield ["holdout"], ", and lengths have no content to choose by: leave one out"
    if options.holdout is None:
        yield ["is_holdout"], ", and no share is held out: set --holdout"
    if not options.labels:
        yield ["untrained", "align"], ", which needs labels: leave them in"
    if long != "split":
        yield ["split_at"], f", which does not go with --long {long}: leave one out"
    if rest := max_len % options.align:
        near = " or ".join(str(size) for size in (max_len - rest, max_len - rest + options.align) if size)
        yield ["align"], f", and --max-len {max_len} is not a multiple of it: take {near}"
    if not options.keeps_whole:
        yield ["align"], f", and {algorithm} cuts documents wherever a row ends: choose another --algorithm"
        yield ["split_at"], f", which does not go with --algorithm {algorithm}: leave one out"


def _conflicts_of_rows(options: PackOptions) -> Iterator[Conflict]:
    """Yield conflicts of algorithms, groups, limits, pairs, and beginnings that are stored once."""
    algorithm = get_algorithm(options.algorithm)
    of_tokens = {*options.keep_tokens, options.input_column, options.labels_column}
    if options.keeps_order:
        yield ["group_by"], f", and {algorithm.name} keeps the order of the source: choose another --algorithm"
    if options.group_by in of_tokens:
        yield ["group_by"], ", a column of tokens: name one with a value per document"
    if options.limit:
        yield ["group_by", "split_at", "algorithm"], ", which does not go with --limit: leave one out"
    if not {*of_tokens, options.lengths_column}.isdisjoint(options.limits):
        yield ["limit"], ", a column of tokens or lengths: name one with a number for each document"
    if not options.keeps_whole:
        yield ["pairs"], f"; pairs are never cut, and {algorithm.name} cuts documents: choose another --algorithm"
        yield ["share_prefixes"], f", and {options.algorithm} cuts documents: choose another --algorithm"
    if options.pairs:
        yield ["keep_tokens"], "; pairs cannot keep columns of tokens: leave it out"
        read = "chosen_input_ids and rejected_input_ids"
        yield ["input_column", "labels_column"], f"; pairs are read from {read}: leave the names of columns out"
        yield ["share_prefixes"], ", and --pairs stores prompts once already: leave it out"
    if options.has_trees:
        apart = ["split_at", "keep_tokens", "labels", "add_column", "index_only"]
        yield apart, f", which does not go with {'--pairs' if options.pairs else '--share-prefixes'}: leave one out"
    if options.train_on == "all":
        reason = "every document trains its beginning, so none is shared"
        yield ["share_prefixes", "pairs"], f": with --train-on all, {reason}: leave one out"
    if options.long == "truncate":
        yield ["pairs"], ", and the tree of a pair cannot be truncated: choose --long drop"
