"""The request for an output: everything that determines it, so that an equal request can resume it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packer.json_records import Count, FileIdentity, JsonRecord, TextIdentity
from packer.options import PackOptions, options_of
from packer.sources.source import Source


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
    """Files of the source in order."""

    text: TextIdentity | None = None
    """Everything that shapes the tokens of text; None for tokens."""

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
    # Files come before options, because another source may imply another column or padding.
    if one != other:
        pair = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
        return "from other source files" + (f" ({pair[0]}, not {pair[1]})" if pair else "")
    if begun.options.get("plan_version") != request.options.get("plan_version"):
        return "of another version of packer, which places documents by other rules"
    declared = options_of(PackOptions).items()
    defaults = {name: [*each.default] if isinstance(each.default, tuple) else each.default for name, each in declared}
    texts = ({} if each.text is None else each.text.to_dict() for each in (begun, request))
    for made, asked in ((begun.options, request.options), tuple(texts)):
        for name in dict.fromkeys([*asked, *made]):
            if made.get(name) != asked.get(name):
                found, wanted = (facts.get(name, defaults.get(name)) for facts in (made, asked))
                return f"with {name} {_short(found)}, not {_short(wanted)}"
    return "from a source that has changed since"


def request_of(opened: Source, options: Mapping[str, object]) -> Request:
    """Return the request for an output of this source; `options` are JSON values by name."""
    return Request(
        options=options,
        files=tuple(
            RequestedFile(
                name=file.name,
                bytes=file.bytes,
                mtime_ns=max((path.stat().st_mtime_ns for path in file.paths), default=None),
            )
            for file in opened.files
        ),
        text=opened.text,
    )


def _short(value: object) -> str:
    """Return a value in one line of at most 60 characters; chat templates are long."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
