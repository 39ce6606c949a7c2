"""Open a source of tokens or lengths, or the source from which a dataset was packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from packer.errors import OtherSourceError, PackerError
from packer.json_records import FileIdentity, SourceIdentity
from packer.options import ReadOptions
from packer.shards.manifest import Manifest
from packer.sources.find_source import SourceLike, find_source, one_source
from packer.sources.formats import open_readers
from packer.sources.inputs import MappedLists
from packer.sources.meanings import ATTENTION, OF_CHATS, OF_PROMPTS
from packer.sources.number_columns import is_array_file, open_array, open_lengths
from packer.sources.source import Documents, Source, Watch, read_documents
from packer.sources.token_columns import open_tokens
from packer.stores import AnyPath, RemotePath, any_path
from packer.stores.paths import PathList


def open_tokenized(source: SourceLike, options: ReadOptions) -> Source:
    """Open a source of tokens or lengths without reading its documents.

    Raises a PackerError if the source is missing, unreadable or lacks a column.
    """
    if is_array_file(source) and options.lengths_column is not None:
        return open_array(any_path(str(source)), options.value_columns)
    found = find_source(source, options.split)
    readers = open_readers(found)
    return (open_tokens if options.lengths_column is None else open_lengths)(found, readers, options)


def open_packed_source(
    folder: AnyPath,
    manifest: Manifest,
    source: SourceLike | Sequence[str | Path],
    tokenizer: str | None = None,
    *,
    opener: Callable[[SourceLike, ReadOptions], Source] = open_tokenized,
) -> Source:
    """Open the source from which a dataset was packed, with the options of the pack.

    A list has the paths of one source, in order. Pass the path or Hub id of the tokenizer if its name in the manifest
    is not enough to find it. Pass an `opener` for text if the source may be text. Raises a PackerError if the source
    cannot be opened, or is obviously not the packed one.
    """
    listed = one_source(source)
    options, name = _options_with(folder, manifest, tokenizer), str(folder)
    try:
        opened = opener(listed, options)
    except OtherSourceError as error:
        of_split = f" of the split {options.split}" if options.split is not None else ""
        text = manifest.source.text
        columns = [options.input_column]
        if text is not None:  # the columns of this kind of documents, without optional ones
            columns = [name for name in text.columns if name not in (*OF_CHATS, *OF_PROMPTS)][:2]
        read = f"column{'s' * (len(columns) > 1)} {' and '.join(map(repr, columns))}"
        raise PackerError(f"{error.found}; {name} was packed from the {read}{of_split}: give that source") from error
    if isinstance(listed, PathList):
        _refuse_reordered(name, manifest, opened)
    return opened


def open_index_source(
    folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]
) -> tuple[Documents, Watch]:
    """Open the source of an index, and check that its files and the lengths of its documents are those of the pack.

    Returns (documents, watch of its files). Raises a PackerError if it is another source, must be decoded, or is in
    object storage.
    """
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so there are no tokens: leave source out")
    opened = open_packed_source(folder, manifest, source)
    refuse_decoding(opened)
    watch = Watch.of(opened)
    _refuse_other_files(str(folder), manifest.source.files, opened)
    if any(isinstance(file.path, RemotePath) for file in opened.files):
        raise PackerError(
            f"{opened.name} is in object storage, and packer.load reads the tokens of an index row by row: copy the "
            "source to a local disk, or pack without --index-only"
        )
    documents = read_documents(opened)
    _refuse_other_source(str(folder), manifest.source, documents.identity)
    watch.check()
    return documents, watch


def refuse_decoding(opened: Source) -> None:
    """Raise a PackerError if documents of a source cannot be addressed in place, as an index requires."""
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
            masks = input_.masks
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
    """Compare names and sizes; this is quick and gives the most helpful message, so it is done first."""
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
    """Raise a PackerError if the packed files are passed in another order."""
    names = [file.name for file in manifest.source.files]
    found = [file.name for file in opened.files]
    if names != found and sorted(names) == sorted(found):
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise PackerError(
            f"{name} was packed from these files in another order ({shown}): give the paths in that order"
        )


def _options_with(folder: AnyPath, manifest: Manifest, tokenizer: str | None) -> ReadOptions:
    """Return the options of the pack, with the path or Hub id of the tokenizer.

    Raises a PackerError if the tokenizer is unknown.
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
