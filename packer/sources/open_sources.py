"""Open a source of tokens, of text with a tokenizer, or of lengths; or the source of a packed dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from packer.errors import OtherSourceError, PackerError
from packer.inputs.formats import ending_of
from packer.inputs.meanings import ATTENTION, OF_CHATS, OF_PROMPTS
from packer.inputs.token_tables import MappedLists
from packer.json_records import FileIdentity, SourceIdentity
from packer.options import ReadOptions
from packer.progress import Progress, silent
from packer.shards.manifest import Manifest
from packer.sources.find_source import find_source
from packer.sources.number_columns import is_array_file, open_array, open_lengths, refuse_other_types
from packer.sources.read_documents import Documents, read_documents
from packer.sources.source import Source, Watch
from packer.sources.tokenized_source import open_tokens
from packer.stores import AnyPath, any_path, is_remote
from packer.stores.paths import PathList, located, split_configuration

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SourceLike = Union[str, Path, PathList, "Dataset", "DatasetDict"]
"""A path, several of them, a Hub id, or a `datasets` object."""


def one_source(source: SourceLike | Sequence[str | Path]) -> SourceLike:
    """Return several paths as one source, what packer wrote as its folder, and any other source as it is.

    A PackerError says what to give instead of other lists.
    """
    source = located(source)
    if isinstance(source, str) and _is_text(source):
        raise PackerError(
            f"{source[:40]!r}...: no such file or folder; if it is a text, give "
            "datasets.Dataset.from_dict({'text': [it]})"
        )
    if not isinstance(source, (list, tuple)):
        return source
    first = source[0] if source else None
    if isinstance(first, dict):
        raise PackerError("a list of records is not supported; give datasets.Dataset.from_list(...)")
    if isinstance(first, list) or (isinstance(first, str) and _is_text(first)):
        column = (
            "text" if isinstance(first, str) else "messages" if first and isinstance(first[0], dict) else "input_ids"
        )
        what = {"text": "texts", "messages": "chats", "input_ids": "lists of tokens"}[column]
        raise PackerError(f"a list of {what} is not supported; give datasets.Dataset.from_dict({{'{column}': [...]}})")
    paths = [each for each in source if isinstance(each, (str, Path))]
    if not paths or len(paths) < len(source):
        raise PackerError(
            "a list of sources holds paths, which are one source, as in ['a.jsonl', 'b.jsonl']; to mix datasets, pack "
            "each of them, and load them together, as in packer.load({'web-packed-4096': 0.7, 'code-packed-4096': 0.3})"
        )
    return paths[0] if len(paths) == 1 else PathList(tuple(paths))


def _is_text(name: str) -> bool:
    """Whether a string is a text rather than a path: nothing has this name, and no file would."""
    looks_like_text = "\n" in name or (" " in name and not ending_of(name))
    return looks_like_text and not is_remote(name) and not os.path.lexists(name)


def open_source(source: SourceLike, options: ReadOptions) -> Source:
    """Open a source without reading its documents.

    Raises a PackerError if the source is missing, unreadable or lacks a column.
    """
    if is_array_file(source) and options.lengths_column is not None:
        opened = open_array(any_path(str(source)), options.value_columns)
    elif options.lengths_column is not None:
        opened = open_lengths(find_source(source, options.split), options.lengths_column, options.value_columns)
    elif options.tokenizer is None:
        opened = open_tokens(find_source(source, options.split), options)
    else:
        from packer.sources.text_source import open_text

        opened = open_text(find_source(source, options.split), options)
    refuse_other_types(opened, options.number_columns)
    return opened


def source_name(source: SourceLike) -> str:
    """Return the name of a source, the last part of its path or its Hub id."""
    if isinstance(source, PathList):
        return str(PathList(tuple(map(source_name, source.paths))))
    if not isinstance(source, (str, Path)):
        return "dataset"
    path = Path(source)
    if str(source).count("/") == 1 and not Path(split_configuration(source)[0]).exists():
        return str(source)
    return path.name if path.name not in ("", "..") else path.resolve().name


def open_packed_source(
    folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[str | Path], tokenizer: str | None = None
) -> Source:
    """Open the source that a dataset was packed from, with the options of the pack.

    A list of sources has the paths of one source, in order. The tokenizer, a path or Hub id, is needed if the name in
    the manifest is not enough to find it. A PackerError is raised if the source cannot be opened, or is obviously not
    the one that was packed.
    """
    listed = one_source(source)
    options, name = options_with(folder, manifest, tokenizer), str(folder)
    try:
        opened = open_source(listed, options)
    except OtherSourceError as error:
        of_split = f" of the split {options.split}" if options.split is not None else ""
        text = manifest.source.text
        columns = [options.input_column]
        if text is not None:  # those that make a document of this kind, without the optional ones
            columns = [name for name in text.columns if name not in (*OF_CHATS, *OF_PROMPTS)][:2]
        read = f"column{'s' * (len(columns) > 1)} {' and '.join(map(repr, columns))}"
        raise PackerError(f"{error.found}; {name} was packed from the {read}{of_split}: give that source") from error
    if isinstance(listed, PathList):
        _refuse_reordered(name, manifest, opened)
    return opened


def open_index_source(
    folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]
) -> tuple[Source, Watch]:
    """Open the source of an index, and check that its files have the names and sizes of those that were packed.

    Return it with a watch of its files. A PackerError is raised if it is another source, or must be decoded.
    """
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so there are no tokens: leave source out")
    opened = open_packed_source(folder, manifest, source)
    refuse_decoding(opened)
    watch = Watch.of(opened)
    _refuse_other_files(str(folder), manifest.source.files, opened)
    return opened, watch


def read_index_source(folder: AnyPath, manifest: Manifest, opened: Source, progress: Progress = silent) -> Documents:
    """Check that all documents of the source of an index have the lengths that were packed, and return them."""
    documents = read_documents(opened, progress)
    _refuse_other_source(str(folder), manifest.source, documents.identity)
    return documents


def refuse_decoding(opened: Source) -> None:
    """Raise a PackerError if documents of a source cannot be addressed where they are, as an index needs it."""
    if opened.skips:
        raise PackerError(
            "--on-error skip decodes the source, and an index reads tokens in place each time it is loaded: leave one "
            "of --on-error and --index-only out"
        )
    if opened.packed_by:
        raise PackerError(
            f"{opened.name} holds rows that were packed before, whose documents are told apart while they are decoded, "
            "and an index reads tokens in place: leave --index-only out"
        )
    for input_ in opened.inputs:
        if not isinstance(input_, MappedLists):
            masks = [name for step in input_.steps for name in getattr(step, "keywords", {}).get("masks", ())]
            what, remedy = "is not plain Arrow", "save it as uncompressed Arrow, as `save_to_disk` of datasets does"
            if opened.text is not None:
                what, remedy = "is text", "write the tokens once with `packer tokenize`, and pack these"
            elif masks:
                pads = masks[0] == ATTENTION
                what = f"has the mask '{masks[0]}', which {'removes padding' if pads else 'becomes labels'} in decoding"
                remedy = f"save it as uncompressed Arrow {'without padding' if pads else 'with labels in its place'}"
            raise PackerError(
                f"{input_.file.name} {what}, and an index reads tokens in place each time it is loaded: {remedy}, or "
                "leave --index-only out"
            )


def _refuse_other_files(name: str, recorded: Sequence[FileIdentity], opened: Source) -> None:
    """Compare names and sizes first, which is quick and gives the most helpful message."""
    found = opened.files
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
    """Raise a PackerError if two sources with the same files differ."""
    one, other = recorded.to_dict(), found.to_dict()
    name = next((name for name in one if one[name] != other.get(name)), None)
    if name is not None:
        is_short = name != "files"
        what = f" is {other.get(name)}, the manifest says {one[name]}" if is_short else " differ from the manifest"
        raise PackerError(f"{dataset} was packed from another source than the one given: its {name}{what}")


def _refuse_reordered(name: str, manifest: Manifest, opened: Source) -> None:
    """Raise a PackerError if the packed files are given in another order."""
    names = [file.name for file in manifest.source.files]
    found = [file.name for file in opened.files]
    if names != found and sorted(names) == sorted(found):
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise PackerError(
            f"{name} was packed from these files in another order ({shown}): give the paths in that order"
        )


def options_with(folder: AnyPath, manifest: Manifest, tokenizer: str | None) -> ReadOptions:
    """Return the options of the pack, with the path or Hub id of the tokenizer.

    Raises a PackerError if the tokenizer is not known.
    """
    options = manifest.options
    if tokenizer is None:
        name = options.tokenizer
        if name is not None and "/" not in name and not Path(name).exists():
            raise PackerError(f"{folder} was packed with the tokenizer {name}: give its path with --tokenizer")
        return options
    if options.tokenizer is None:
        raise PackerError(f"{folder} was packed from tokens: leave --tokenizer {tokenizer} out")
    return replace(options, tokenizer=tokenizer)
