"""Requests: the options and source files that determine an output, and the difference between two requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packer.errors import UNREADABLE, PackerError
from packer.facts import FileIdentity, JsonRecord, TextIdentity
from packer.facts.json_record import Count
from packer.options import PackOptions, options_of
from packer.options.option import as_json
from packer.output.unfinished_output import REQUEST, Output
from packer.shards.file_names import WORK


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedFile(JsonRecord):
    """Facts about a source file that reveal whether it has changed."""

    name: str
    """Path relative to the source."""

    bytes: Count
    """Size of the file."""

    mtime_ns: int | None = None
    """Time of the last write, in nanoseconds since 1970; None for datasets in memory, or to ignore times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(JsonRecord):
    """Everything that determines an output; an equal request can resume it."""

    options: Mapping[str, object]
    """Options that affect the output, as JSON values by name."""

    files: tuple[RequestedFile, ...]
    """Files of the source in order; for a mixture, those of all sources."""

    texts: Mapping[str, TextIdentity]
    """Text identity of each source of text by its name in the mixture, or "" for a single source."""

    @property
    def without_times(self) -> Request:
        """The same request for files of any modification time."""
        return replace(self, files=names_and_sizes(self.files))


def names_and_sizes(files: Iterable[RequestedFile | FileIdentity]) -> tuple[RequestedFile, ...]:
    """Return the name and size of each file, which identify it wherever it is stored."""
    return tuple(RequestedFile(name=file.name, bytes=file.bytes) for file in files)


def difference(begun: Request, request: Request) -> str:
    """Describe the first difference between two requests: "with max_len 2048, not 4096"."""
    one, other = ([file.name for file in each.files] for each in (begun, request))
    # Files come before options, because another source may imply another column or padding. Other weights come before
    # files, because they imply other sources.
    if one != other and begun.options.get("weights") == request.options.get("weights"):
        pair = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
        return "from other source files" + (f" ({pair[0]}, not {pair[1]})" if pair else "")
    is_planned = "index" not in {**begun.options, **request.options}
    if is_planned and begun.options.get("plan_version") != request.options.get("plan_version"):
        return "of another version of packer, which places documents by other rules"
    defaults = {name: as_json(each.default) for name, each in options_of(PackOptions).items() if not each.is_required}
    for made, asked in ((begun.options, request.options), (_by_name(begun.texts), _by_name(request.texts))):
        for name in dict.fromkeys([*asked, *made]):
            if made.get(name) != asked.get(name) and name != "plan_version":  # which an index does not have
                found, wanted = (facts.get(name, defaults.get(name)) for facts in (made, asked))
                return f"with {name} {_short(found)}, not {_short(wanted)}"
    return "from other source files" if one != other else "from a source that has changed since"


def resumes(content: bytes | None, request: Request, output: Output, *, overwrite: bool) -> bool:
    """Whether an unfinished output was begun with an equal request; `content` is that of `Output.begun`.

    If the file is damaged, or the request is another one, this is a PackerError without `overwrite`.
    """
    if content is None:
        return False
    try:
        begun = Request.from_dict(json.loads(content))
    except UNREADABLE as error:
        if overwrite:
            return False
        raise PackerError(
            f"{output.store.root / WORK / REQUEST} is damaged, so the unfinished output cannot be resumed: "
            "start afresh with --overwrite"
        ) from error
    if begun != request and not overwrite:
        raise PackerError(
            f"{output.out} is an unfinished pack {difference(begun, request)}: "
            "repeat that command to finish it, or start afresh with --overwrite"
        )
    return begun == request


def _by_name(texts: Mapping[str, TextIdentity]) -> dict[str, object]:
    """Return facts about texts under names such as "eos of web", or "eos" for a single source."""
    return {
        f"{name} of {source}" if source else name: value
        for source, text in texts.items()
        for name, value in text.to_dict().items()
    }


def _short(value: object) -> str:
    """Return a value in one line of at most 60 characters; chat templates are long."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
