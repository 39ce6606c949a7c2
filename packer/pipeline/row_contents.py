"""The contents of a row, segment by segment: as a table, as text with trained tokens marked, or as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.column_names import TREE, input_ids_in
from packer.errors import PackerError, as_whole, python_names
from packer.loader.dataset import PackedDataset
from packer.loader.load import load
from packer.loader.row_tokens import nodes_of
from packer.options.option import as_path
from packer.plain_text import count_of, html_table, render_table
from packer.stores import AnyPath
from packer.stores.paths import packed_path
from packer.text.tokenizer import open_decoder, open_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Decode = Callable[[Any], str]
"""Function that converts token ids to text."""

Paint = Callable[..., str]
"""Function that returns a text in a style of `click.style`, such as `dim=True`."""

_SHOWN_TOKENS = 8  # maximum number of tokens per segment in the table
_WIDEST = 40  # maximum width of a kept value in the table, in characters
_COLORS = ("cyan", "yellow", "green", "magenta", "blue")  # colors of consecutive segments

Segment = dict[str, Any]
"""A segment of a row, as `--json` prints it. Padding at the end of a row is a segment with document -1 and no tokens.

`extent` is the number of tokens that it takes in the row, including padding by `--align`. Tokens and labels are arrays.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class RowContents:
    """The segments of a row, or of a document. `print` shows the output of `packer show`; a notebook shows a table."""

    packed: str
    """Folder of the packed dataset."""

    rows: Mapping[int, Sequence[Segment]]
    """Segments by row number."""

    decode: Decode | None = None
    """Function that converts token ids to text; None to show ids."""

    group_by: str | None = None
    """Name of the kept column that documents were grouped by; None without groups."""

    full: bool = False
    """Whether to show all tokens, instead of a table with the first tokens of each segment."""

    of_document: bool = False
    """Whether these are the segments of one document. The output then names each row."""

    def to_dict(self) -> dict[str, object]:
        """Return the output of `packer show --json` as JSON values, with the text of segments if `decode` is set."""
        rows = []
        for number, segments in self.rows.items():
            texts = [{} if self.decode is None else {"text": self.decode(each["input_ids"])} for each in segments]
            shown = [json_value(each | text) for each, text in zip(segments, texts, strict=True)]
            rows.append({"row": number, "segments": shown})
        return {"packed": self.packed, "rows": rows}

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str | None:
        """Return the HTML that notebooks show; None if all tokens are shown, as text."""
        if self.full:
            return None
        tables = ((number, self._table(segments)[0]) for number, segments in self.rows.items())
        return "".join(html_table(f"row {number:,}", lines, head=head) for number, (head, *lines) in tables)

    def text(self, paint: Paint | None = None) -> str:
        """Return the segments as text, in color if `paint` is given."""
        parts = []
        for number, segments in self.rows.items():
            text = "\n".join(self._text_lines(segments, paint)) if self.full else self._table_text(segments, paint)
            parts.append(f"row {number:,}\n{text}" if self.of_document else text)
        return "\n".join(parts)

    def _table_text(self, segments: Sequence[Segment], paint: Paint | None) -> str:
        table, owners = self._table(segments)
        columns = len(table[0]) - 5
        head, *lines = render_table(table, align="<>>>>" + "<" * columns).split("\n")
        if paint is not None:
            head = paint(head)
            lines = [_painted(segment, line, paint) for segment, line in zip(owners, lines, strict=True)]
        return "\n".join([head, *lines])

    def _table(self, segments: Sequence[Segment]) -> tuple[list[list[str]], list[Segment]]:
        """Return (table: a head, then a line per segment or tree node; segment of each line).

        The line of a segment has its length, document, trained tokens, kept columns and first tokens, as text if they
        can be decoded.
        """
        kept, kept_tokens = list(segments[0]["kept"]), list(segments[0]["kept_tokens"])
        named = [f"{name} (group)" if name == self.group_by else name for name in kept]
        table = [["", "tokens", "document", "from", "trained", *named, "begins", *kept_tokens]]
        owners: list[Segment] = []
        for segment in segments:
            if segment["doc_id"] < 0:
                cells = [f"{segment['extent']:,}", "padding", "", "0", *[""] * (len(kept) + 1 + len(kept_tokens))]
            else:
                cells = [
                    f"{len(segment['input_ids']):,}",
                    _name(segment),
                    f"{segment['doc_start']:,}",
                    _trained(segment),
                    *map(_cell, segment["kept"].values()),
                    _first_tokens(segment["input_ids"], self.decode),
                    *(_first_values(values) for values in segment["kept_tokens"].values()),
                ]
            table.append([f"  {segment['segment']}", *cells])
            owners.append(segment)
            for number, part in enumerate(_branches(segment)):
                dots = "· " * part["depth"]
                cells = [
                    f"{len(part['input_ids']):,}",
                    f"answer {part['answer']}",
                    f"{part['position']:,}",
                    _trained(part),
                ]
                cells += [*[""] * len(kept), dots + _first_tokens(part["input_ids"], self.decode)]
                table.append([f"    .{number}", *cells])
                owners.append(segment)
        return table, owners

    def _text_lines(self, segments: Sequence[Segment], paint: Paint | None) -> Iterator[str]:
        """Yield all tokens of segments as text, and distinguish trained tokens from context.

        With color, trained tokens are bold and context is dim. Without color, trained tokens are between [[ and ]].
        """
        for segment in segments:
            first, tokens = segment["doc_start"], len(segment["input_ids"])
            head = f"document {_name(segment)}, tokens {first:,} to {first + tokens - 1:,}, {_trained(segment)} trained"
            if segment["doc_id"] < 0:
                head = f"padding, {count_of(segment['extent'], 'token')}"
            head = f"segment {segment['segment']}: {head}"
            yield head if paint is None else _painted(segment, head, paint)
            for number, part in enumerate(_branches(segment)):
                after = f"after {part['parent']}" if part["parent"] >= 0 else "at the beginning"
                yield f"node {number}, {after}, answer {part['answer']}:"
                yield _marked(part, self.decode, paint)
            if segment["doc_id"] >= 0 and not segment.get("nodes"):
                yield _marked(segment, self.decode, paint)


def show(
    packed: str | AnyPath,
    row: int = 0,
    *,
    document: int | str | None = None,
    tokenizer: str | Path | None = None,
    source: str | Path | Sequence[str | Path] | None = None,
    full: bool = False,
) -> RowContents:
    """Show a row of a packed dataset, segment by segment, or all segments of a document.

    Args:
        packed: folder of the packed dataset.
        row: number of the row; -1 is the last.
        document: number of a document; show its segments instead of a row.
        tokenizer: path or Hub id of the tokenizer, to show text instead of token ids.
        source: source that was packed, if `packed` is an index.
        full: show all tokens, with trained tokens between [[ and ]].

    Returns:
        The segments. `print` shows the output of `packer show`; a notebook shows a table.

    Raises:
        PackerError: the row or document does not exist, or the dataset cannot be read.
    """
    with python_names():
        name, folder, row = as_path(tokenizer), packed_path(packed), as_whole("row", row)
        dataset = load(folder, source=source)
        _refuse_tokenless(dataset, folder)
        if name is not None:
            _refuse_another(name, dataset, folder)
        if document is not None:
            found = _rows_of_document(dataset, folder, str(document))
        elif -len(dataset) <= row < len(dataset):
            found = {row % len(dataset): segments_of(dataset, row)}
        else:
            raise PackerError(f"{folder} has no row {row}: there are {len(dataset):,}, from 0 to {len(dataset) - 1:,}")
        return RowContents(
            packed=str(folder),
            rows=found,
            decode=open_decoder(name) if name is not None else None,
            group_by=dataset.manifest.options.group_by,
            full=full,
            of_document=document is not None,
        )


def _refuse_tokenless(dataset: PackedDataset, packed: AnyPath) -> None:
    """Raise a PackerError if the rows have no tokens to show."""
    if dataset.manifest.options.lengths_column is not None:
        raise PackerError(
            f"{packed} was packed from lengths alone, so there are no tokens to show: packer.rows('{packed}') has "
            "the documents of each row"
        )
    if input_ids_in(dataset.column_names) not in dataset.column_names:
        raise PackerError(
            f"{packed} is an index, whose rows have no tokens: name the dataset that was packed by --source"
        )


def _refuse_another(tokenizer: str, dataset: PackedDataset, packed: AnyPath) -> None:
    """Raise a PackerError if the tokens were made by another tokenizer: its text would be wrong."""
    from packer.text.tokens import TextTokens

    text = dataset.manifest.source.text
    if text is None:  # the source held tokens; their tokenizer is unknown
        return
    if TextTokens(open_tokenizer(tokenizer)).content_hash != text.tokenizer:
        made = dataset.manifest.options.tokenizer
        raise PackerError(
            f"{packed} was tokenized with {made}, and {tokenizer} is another tokenizer, in which its ids are other "
            "words: give the first one, or leave --tokenizer out"
        )


def _rows_of_document(dataset: PackedDataset, packed: AnyPath, document: str) -> dict[int, list[Segment]]:
    """Return the segments of a document, by row number."""
    if not document.isdecimal():
        raise PackerError(f"--document is {document!r}: give the number of a document")
    rows = dataset.find(int(document))
    if not rows:
        raise PackerError(f"{packed} holds no document {document}: it is empty, dropped, or not in the source")
    return {row: [each for each in segments_of(dataset, row) if each["doc_id"] == int(document)] for row in rows}


def segments_of(dataset: PackedDataset, number: int) -> list[Segment]:
    """Return the segments of a row, with its kept columns."""
    row: Mapping[str, Any] = dataset[number]
    options, place = dataset.manifest.options, 0
    numbers = {"extent": "seq_lengths", "doc_id": "doc_ids", "doc_start": "doc_starts"}
    lengths = row.get("seq_tokens", row["seq_lengths"])
    found = []
    for index, (length, document) in enumerate(zip(lengths, row["doc_ids"], strict=True)):
        tokens = slice(place, place + (length if document >= 0 else 0))
        segment: Segment = {"segment": index} | {name: int(row[column][index]) for name, column in numbers.items()}
        columns = {"input_ids": input_ids_in(row), "labels": "labels"}
        segment |= {name: row[column][tokens] for name, column in columns.items() if column in row}
        segment["kept"] = {name: json_value(row[name][index]) for name in options.kept if name != TREE}
        if TREE in options.kept and document >= 0:
            segment["nodes"] = [node._asdict() for node in nodes_of(row[TREE][index])]
        segment["kept_tokens"] = {name: row[name][tokens] for name in options.kept_tokens}
        found.append(segment)
        place += segment["extent"]
    return found


def _name(segment: Segment) -> str:
    """Return the number of the segment's document as text."""
    return "padding" if segment["doc_id"] < 0 else f"{segment['doc_id']:,}"


def _trained(segment: Segment) -> str:
    """Return the number of trained tokens as text; "?" if the dataset has no labels."""
    return f"{(segment['labels'] >= 0).sum():,}" if "labels" in segment else "?"


def _branches(segment: Segment) -> Iterator[Segment]:
    """Yield the nodes of a tree, each with its tokens and labels; nothing for an ordinary document."""
    for node in segment.get("nodes", ()):
        here = slice(node["first"], node["first"] + node["tokens"])
        yield node | {name: segment[name][here] for name in ("input_ids", "labels")}


def _painted(segment: Segment, line: str, paint: Paint) -> str:
    """Color the line of a segment; neighbors have different colors."""
    if segment["doc_id"] < 0:
        return paint(line, dim=True)
    return paint(line, fg=_COLORS[segment["segment"] % len(_COLORS)])


def _marked(segment: Segment, decode: Decode | None, paint: Paint | None) -> str:
    """Return the tokens of a segment as text, with runs of trained tokens marked."""
    ids, labels = segment["input_ids"], segment.get("labels")
    trained = [True] * len(ids) if labels is None else (labels >= 0).tolist()
    texts, place = [], 0
    for is_trained, run in groupby(trained):
        first, place = place, place + len(list(run))
        text = " ".join(map(str, ids[first:place])) if decode is None else decode(ids[first:place])
        if paint is not None:
            text = paint(text, bold=True) if is_trained else paint(text, dim=True)
        elif is_trained and labels is not None:
            text = f"[[{text}]]"
        texts.append(text)
    return (" " if decode is None else "").join(texts)


def _first_tokens(ids: NDArray[np.int32], decode: Decode | None) -> str:
    """Return the beginning of a segment as text or as ids, at most 60 characters."""
    text = " ".join(map(str, ids[:_SHOWN_TOKENS])) if decode is None else repr(decode(ids[:24]))[1:-1]
    return text[:60]


def _first_values(values: NDArray[Any]) -> str:
    """Return the values of the first tokens as text; several values of one token are in brackets."""
    if values.ndim == 1:
        return " ".join(map(_cell, values[:_SHOWN_TOKENS]))
    shown = values[: max(1, _SHOWN_TOKENS // values.shape[1])]
    return " ".join(_cell(f"[{' '.join(map(_cell, each))}]") for each in shown)


def _cell(value: object) -> str:
    """Format a value of a kept column on one line of limited width: 0.1234567 -> 0.12346."""
    if value is None:
        return "null"
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{value:.5g}"
    text = repr(value)[1:-1] if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def json_value(value: Any) -> Any:
    """Convert a value to JSON: numbers, booleans, strings, lists, objects and null stay, others become strings.

    NaN (also a missing number) and infinity become null.
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy values
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): json_value(each) for name, each in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
