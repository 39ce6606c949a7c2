"""Open a source of tokens, or of text with a tokenizer; a mixture of several; or that of a packed dataset."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Union

from packer.errors import OtherSourceError, PackerError
from packer.facts import FileIdentity, SourceIdentity
from packer.inputs.hugging_face import Found
from packer.inputs.token_tables import MappedLists
from packer.options import PackOptions
from packer.paths import PathList
from packer.progress import Progress, silent
from packer.shards.manifest import Manifest, parts_of
from packer.sources.corpus import Corpus, Documents, distinct_names
from packer.sources.find_source import column_names, count_files, find_source
from packer.sources.number_columns import ARRAY_COLUMN, is_array_file, open_array, open_lengths, with_numbers
from packer.sources.packed_documents import PackedDocuments
from packer.sources.source import Source
from packer.sources.survey import read_documents
from packer.sources.tokenized_source import open_tokens
from packer.sources.watch_source import Watch
from packer.stores import AnyPath, any_path, is_remote

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SourceLike = Union[str, Path, PathList, "Dataset", "DatasetDict"]
"""A path, several of them, a glob or Hub id, or a `datasets` object."""


def split_weights(
    source: SourceLike | Sequence[str | Path] | Sequence[tuple[SourceLike, float]],
) -> tuple[SourceLike | list[SourceLike], tuple[float, ...]]:
    """Split a list of (source, weight) into (sources, weights); return a single source or paths without weights."""
    if not isinstance(source, (list, tuple)):
        return source, ()
    paths = [each for each in source if isinstance(each, (str, Path))]
    if paths and len(paths) == len(source):
        return one_source(paths), ()
    pairs = [pair for pair in source if isinstance(pair, (list, tuple)) and len(pair) == 2]
    if len(pairs) != len(source) or not pairs:
        raise PackerError(
            "a list of sources holds paths, which are one source, as in ['a.jsonl', 'b.jsonl'], or is a mixture of "
            "(source, weight), as in [('web', 0.7), ('code', 0.3)]"
        )
    weights = tuple(float(weight) if type(weight) is int else weight for _, weight in pairs)
    return [each for each, _ in pairs], weights


def one_source(paths: Sequence[str | Path]) -> str | Path | PathList:
    """Return a path as it is, and several as one source."""
    return paths[0] if len(paths) == 1 else PathList(tuple(paths))


def open_sources(source: SourceLike | Sequence[SourceLike], options: PackOptions) -> Corpus:
    """Open a source, or the sources of a mixture, which the options have as many weights for.

    A PackerError is raised if a source is missing, unreadable or lacks a column, or the number of sources is wrong.
    """
    if not isinstance(source, (list, tuple)):
        if options.weights:
            raise PackerError(f"one source is given for a mixture of {len(options.weights)}: give all, in order")
        return Corpus(parts=(open_with(source, options),))
    if len(source) != len(options.weights):
        raise PackerError(
            f"{len(source)} source(s) are given, and weights for {len(options.weights)}: give each source, in order"
        )
    _refuse_twice(source)
    parts = tuple(open_with(each, options, mixed=True) for each in source)
    _refuse_unused(parts, options)
    return Corpus(parts=parts, names=distinct_names([source_name(each) for each in source]), mix=options)


def open_with(source: SourceLike, options: PackOptions, *, turns_of_chats: bool = False, mixed: bool = False) -> Source:
    """Open a source without reading its documents.

    With `turns_of_chats`, read where the turns of chats begin, even if the options do not split there. In a mixture
    (`mixed`), a source that has tokens is read as tokens even with a tokenizer, and options for text apply to the
    sources that they fit.
    """
    if is_array_file(source):
        if options.lengths_column is None:
            raise PackerError(
                f"{source} is a bare array, in which no document begins or ends: of tokens, write Arrow or Parquet "
                f"with a list for each document in the column '{options.input_column}'; if it holds the lengths of "
                f"documents, give it as --lengths {source} (in Python: lengths_column='{ARRAY_COLUMN}')"
            )
        opened = open_array(any_path(str(source)), options.value_columns)
    elif options.lengths_column is not None:
        opened = open_lengths(find_source(source, options.split), options.lengths_column, options.value_columns)
    else:
        opened = _documents(find_source(source, options.split), options, turns_of_chats=turns_of_chats, mixed=mixed)
    return with_numbers(opened, tuple(options.limits)) if options.limit else opened


def _documents(found: Found, options: PackOptions, *, turns_of_chats: bool, mixed: bool) -> Source:
    if options.tokenizer is None:
        return open_tokens(found, options)
    from packer.sources.text_source import open_text
    from packer.text.text_columns import names_in

    text_column = options.text_column
    if mixed:
        names = column_names(found, options.input_column if options.on_error == "skip" else None)
        if not set(names_in(text_column)) <= set(names):
            text_column = None
        if text_column is None and options.input_column in names:
            return open_tokens(found, options)
    return open_text(found, options, text_column=text_column, turns_of_chats=turns_of_chats, mixed=mixed)


def _refuse_twice(sources: Sequence[SourceLike]) -> None:
    """Raise a PackerError if a source occurs twice."""
    seen = set()
    for source in sources:
        key: object = str(source) if is_remote(source) else id(source)
        if isinstance(source, (str, Path)) and not is_remote(source):
            key = os.path.realpath(source)
        if key in seen:
            raise PackerError(
                f"the source {source_name(source)} is given twice: give it once, with the sum of the weights"
            )
        seen.add(key)


def _refuse_unused(parts: Sequence[Source], options: PackOptions) -> None:
    """Raise a PackerError for options for text that apply to no source."""
    texts = [part.text for part in parts if part.text is not None]
    if options.tokenizer is not None and not texts:
        raise PackerError(
            f"all {len(parts)} sources have the column '{options.input_column}', so they are tokenized already: "
            "leave --tokenizer out, or name the column of text with --text-column"
        )
    from packer.text.text_columns import names_in

    if options.train_on == "each-answer" and len(texts) < len(parts):
        raise PackerError(
            f"{len(parts) - len(texts)} of {len(parts)} sources are tokenized already, so they have no answers for "
            "--train-on each-answer: pack them separately"
        )
    columns = names_in(options.text_column)
    if columns and not any(set(columns) <= set(text.columns) for text in texts):
        raise PackerError(f"--text-column is '{options.text_column}', which none of the {len(parts)} sources has")
    if options.train_on is not None and all(text.train_on != options.train_on for text in texts):
        raise PackerError(
            f"--train-on {options.train_on} fits none of the {len(parts)} sources: leave it out, or choose all"
        )


def source_name(source: SourceLike | Sequence[SourceLike]) -> str:
    """Return the name of a source, the last part of its path or its Hub id; of a mixture, the names of its sources."""
    if isinstance(source, (list, tuple)):
        return " + ".join(map(source_name, source))
    if isinstance(source, PathList):
        return str(PathList(tuple(map(source_name, source.paths))))
    if not isinstance(source, (str, Path)):
        return "dataset"
    path = Path(source)
    if str(source).count("/") == 1 and not path.exists():
        return str(source)
    return path.name if path.name not in ("", "..") else path.resolve().name


_SHOWN = 10  # numbers of files in a message


def open_packed_source(
    folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike], tokenizer: str | None = None
) -> Corpus:
    """Open the source that a dataset was packed from, with the options of the pack.

    A list of sources has all sources of a mixture, or the paths of one source, in order. The tokenizer, a path or Hub
    id, is needed if the name in the manifest is not enough to find it. A PackerError is raised if the source cannot be
    opened, or is obviously not the one that was packed.
    """
    names = [part.name for part in manifest.source.mixture]
    sources = _listed_sources(folder, manifest, source)
    options, name = options_with(folder, manifest, tokenizer), _named(folder, manifest)
    try:
        opened = open_sources(sources if names else sources[0], options)
    except OtherSourceError as error:
        of_split = f" of the split {options.split}" if options.split is not None else ""
        raise PackerError(
            f"{error.found}; {name} was packed from the column '{options.input_column}'{of_split}: give that source"
            if manifest.source.text is None
            else f"{error.found}; {name} was packed from text{of_split}: give that source"
        ) from error
    if isinstance(sources[0], PathList):
        _refuse_reordered(name, manifest, opened)
    return opened


def with_sources(
    folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]
) -> list[tuple[Manifest, SourceLike | Sequence[SourceLike]]]:
    """Return each generation of a dataset with its source; a single generation gets everything that is given.

    Several paths of a generation may be a list of their own. In a plain list of all paths, the number of files that the
    manifest has for each generation says where the next one begins.
    """
    parts = parts_of(manifest)
    if len(parts) == 1:
        return [(parts[0], source)]
    sources = list(source) if isinstance(source, (list, tuple)) else [source]
    paths = [each for each in sources if isinstance(each, (str, Path))]
    if len(parts) < len(sources) == len(paths):
        return list(zip(parts, _by_generation(folder, parts, paths), strict=True))
    if len(sources) != len(parts):
        raise PackerError(
            f"{folder} was packed from {len(parts)} sources, one after the other, and {len(sources)} source(s) are "
            "given: give the source of each generation, in order"
        )
    return list(zip(parts, sources, strict=True))


def _by_generation(folder: AnyPath, parts: Sequence[Manifest], paths: Sequence[str | Path]) -> list[SourceLike]:
    """Divide paths among generations, so that each has as many files as were packed; refuse others."""
    counts = [count_files(path, parts[0].options.split) for path in paths]
    files = [len(part.source.files) for part in parts]
    ends = list(accumulate(counts))
    cuts = [bisect_left(ends, end) + 1 for end in accumulate(files)]
    if cuts[-1] != len(paths) or any(ends[cut - 1] != end for cut, end in zip(cuts, accumulate(files), strict=True)):
        raise PackerError(
            f"{folder} was packed from {_in_words(files)} file(s), one generation after the other, and the sources "
            f"given have {_in_words(counts)}: give all paths of each generation, in order"
        )
    return [one_source(paths[first:last]) for first, last in pairwise([0, *cuts])]


def _in_words(counts: Sequence[int]) -> str:
    """Return numbers as text, only the first ones if there are many: "2, 3 and 1"."""
    if len(counts) > _SHOWN:
        return ", ".join(f"{count:,}" for count in counts[:_SHOWN]) + ", ..."
    return " and ".join(filter(None, [", ".join(f"{count:,}" for count in counts[:-1]), f"{counts[-1]:,}"]))


def _listed_sources(folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]) -> list[SourceLike]:
    """Return all sources of a mixture, or the one source, of which several paths may be given; refuse others."""
    names = [part.name for part in manifest.source.mixture]
    sources: list[SourceLike] = list(source) if isinstance(source, (list, tuple)) else [source]
    paths = [each for each in sources if isinstance(each, (str, Path))]
    if not names and paths and len(paths) == len(sources):
        sources = [one_source(paths)]
    if len(sources) != max(len(names), 1):
        kind = f"a mixture of {', '.join(names)}" if names else "packed from one source"
        raise PackerError(f"{folder} is {kind}, and {len(sources)} source(s) are given: give each one, in this order")
    return sources


def open_index_source(
    folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]
) -> tuple[Corpus, Watch]:
    """Open the source of an index, and check that its files have the names and sizes of those that were packed.

    Return it with a watch of its files. A PackerError is raised if it is another source, or must be decoded.
    """
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so there are no tokens: leave source out")
    opened = open_packed_source(folder, manifest, source)
    refuse_decoding(opened)
    watch = Watch.of(opened)
    _refuse_other_files(_named(folder, manifest), manifest.source.files, opened)
    return opened, watch


def read_index_source(folder: AnyPath, manifest: Manifest, opened: Corpus, progress: Progress = silent) -> Documents:
    """Check that all documents of the source of an index have the lengths that were packed, and return them."""
    documents = read_documents(opened, progress)
    _refuse_other_source(_named(folder, manifest), manifest.source, documents.identity)
    return documents


def refuse_decoding(opened: Corpus) -> None:
    """Raise a PackerError if documents of a source cannot be addressed where they are, as an index needs it."""
    for source in opened.sources.values():
        for input_ in source.inputs:
            if isinstance(input_, PackedDocuments):
                raise PackerError(
                    f"{source.name} is packed, and an index reads documents in place: leave --index-only out"
                )
            if not isinstance(input_, MappedLists):
                kind = "text" if source.text is not None else "not plain Arrow"
                remedy = (
                    "write the tokens once with `packer tokenize`, and pack these"
                    if source.text is not None
                    else "save it as uncompressed Arrow, as `save_to_disk` of datasets does"
                )
                raise PackerError(
                    f"{input_.file.name} is {kind}, and an index reads tokens in place each time it is loaded: {remedy}"
                    ", or leave --index-only out"
                )


def _refuse_other_files(name: str, recorded: Sequence[FileIdentity], opened: Corpus) -> None:
    """Compare names and sizes first, which is quick and gives the most helpful message."""
    found = [input_.file for input_ in opened.inputs]
    if len(found) != len(recorded):
        raise PackerError(
            f"{name} was packed from {len(recorded):,} file(s), and the source has {len(found):,}: give that source"
        )
    for one, other in zip(recorded, found, strict=True):
        if (one.name, one.bytes) != (other.name, other.bytes):
            raise PackerError(
                f"{name} was packed from {one.name} of {one.bytes:,} bytes, and the source has {other.name} of "
                f"{other.bytes:,} bytes in its place: give the source that was packed, or pack again"
            )


def _refuse_other_source(dataset: str, recorded: SourceIdentity, found: SourceIdentity) -> None:
    """Raise a PackerError if two sources with the same files differ; those of a mixture may have other names."""
    names = [part.name for part in recorded.mixture]
    if len(names) == len(found.mixture):
        parts = tuple(replace(part, name=name) for part, name in zip(found.mixture, names, strict=True))
        found = replace(found, mixture=parts)
    one, other = recorded.to_dict(), found.to_dict()
    name = next((name for name in one if one[name] != other.get(name)), None)
    if name is not None:
        is_short = name not in ("files", "mixture")
        what = f" is {other.get(name)}, the manifest says {one[name]}" if is_short else " differ from the manifest"
        raise PackerError(f"{dataset} was packed from another source than the one given: its {name}{what}")


def _refuse_reordered(name: str, manifest: Manifest, opened: Corpus) -> None:
    """Raise a PackerError if the files are those that were packed, in another order."""
    names = [file.name for file in manifest.source.files]
    found = [input_.file.name for input_ in opened.inputs]
    if names != found and sorted(names) == sorted(found):
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise PackerError(
            f"{name} was packed from these files in another order ({shown}): give the paths in that order"
        )


def _named(folder: AnyPath, manifest: Manifest) -> str:
    """Return the name of a dataset in messages, with the generation if the manifest describes only one."""
    return str(folder) if manifest.part is None else f"generation {manifest.part.generation} of {folder}"


def options_with(folder: AnyPath, manifest: Manifest, tokenizer: str | None) -> PackOptions:
    """Return the options of the pack, with the path or Hub id of the tokenizer; a PackerError if it is not known."""
    options = manifest.options
    if tokenizer is None:
        name = options.tokenizer
        if name is not None and "/" not in name and not Path(name).exists():
            raise PackerError(f"{folder} was packed with the tokenizer {name}: give its path with --tokenizer")
        return options
    if options.tokenizer is None:
        raise PackerError(f"{folder} was packed from tokens: leave --tokenizer {tokenizer} out")
    return replace(options, tokenizer=tokenizer)
