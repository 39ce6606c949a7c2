"""The contents of a row, segment by segment: as a table, as text with trained tokens marked, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.column_names import RECORD_IDS, SOURCE, TREE, input_ids_in
from packer.errors import PackerError, as_whole, first_line, python_names
from packer.loader.batch_sampler import BatchSampler
from packer.loader.dataset import PackedDataset
from packer.loader.load import load
from packer.loader.row_tokens import nodes_of
from packer.options.option import as_path
from packer.plain_text import count_of, html_table, render_table
from packer.stores import AnyPath
from packer.stores.paths import expanded
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
_UNKNOWN = "(records may make several documents each, so the number of a document's record is not always known)"
_COLORS = ("cyan", "yellow", "green", "magenta", "blue")  # colors of consecutive segments

ShownSegment = dict[str, Any]
"""A segment of a row, as `--json` prints it. Padding at the end of a row is a segment with document -1 and no tokens.

`extent` is the number of tokens that it takes in the row, including padding by `--align`. Tokens and labels are arrays.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class RowContents:
    """The segments of a row, or of a document. `print` shows the output of `packer show`; a notebook shows a table."""

    packed: str
    """Folder of the packed dataset."""

    rows: Mapping[int, Sequence[ShownSegment]]
    """Segments by row number."""

    decode: Decode | None = None
    """Function that converts token ids to text; None to show ids."""

    group_by: str | None = None
    """Name of the kept column that documents were grouped by; None without groups."""

    full: bool = False
    """Whether to show all tokens, instead of a table with the first tokens of each segment."""

    head: str | None = None
    """Lines above the table; None for a single row. Otherwise, each segment has the number of its row."""

    origin: tuple[str, ...] = ()
    """Keys of a segment that say where its document came from, to be shown as columns: `packed`, `file`, `record`."""

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
        head, *lines = self._table()[0]
        return html_table(f"row {next(iter(self.rows)):,}" if self.head is None else self.head, lines, head=head)

    def text(self, paint: Paint | None = None) -> str:
        """Return the segments as text, in color if `paint` is given."""
        parts = [self.head] if self.head else []
        if not self.full:
            return "\n".join([*parts, self._table_text(paint)])
        for number, segments in self.rows.items():
            parts += [] if self.head is None else [f"row {number:,}"]
            parts += self._text_lines(segments, paint)
        return "\n".join(parts)

    def _table_text(self, paint: Paint | None) -> str:
        table, owners = self._table()
        align = ("" if self.head is None else ">") + "<>>>>"
        head, *lines = render_table(table, align=align + "<" * (len(table[0]) - len(align))).split("\n")
        if paint is not None:
            head = paint(head)
            lines = [_painted(segment, line, paint) for segment, line in zip(owners, lines, strict=True)]
        return "\n".join([head, *lines])

    def _table(self) -> tuple[list[list[str]], list[ShownSegment]]:
        """Return (table: a head, then a line per segment or tree node; segment of each line).

        The line of a segment has its row if rows are named, its length, document, trained tokens, origin, kept columns
        and first tokens, as text if they can be decoded.
        """
        segments = [(number, segment) for number, of_row in self.rows.items() for segment in of_row]
        kept, kept_tokens = (list(segments[0][1][key]) for key in ("kept", "kept_tokens"))
        named = [*self.origin, *(f"{name} (group)" if name == self.group_by else name for name in kept)]
        table = [["", "tokens", "document", "from", "trained", *named, "begins", *kept_tokens]]
        owners: list[tuple[int, ShownSegment]] = []
        for number, segment in segments:
            if segment["doc_id"] < 0:
                cells = [f"{segment['extent']:,}", "padding", "", "0", *[""] * (len(named) + 1 + len(kept_tokens))]
            else:
                cells = [
                    f"{len(segment['input_ids']):,}",
                    f"{segment['doc_id']:,}",
                    f"{segment['doc_start']:,}",
                    _trained(segment),
                    *("?" if segment[key] is None else str(segment[key]) for key in self.origin),
                    *map(_cell, segment["kept"].values()),
                    _first_tokens(segment["input_ids"], self.decode),
                    *(_first_values(values) for values in segment["kept_tokens"].values()),
                ]
            table.append([f"  {segment['segment']}", *cells])
            owners.append((number, segment))
            for node, part in enumerate(_branches(segment)):
                dots = "· " * part["depth"]
                cells = [
                    f"{len(part['input_ids']):,}",
                    f"answer {part['answer']}",
                    f"{part['position']:,}",
                    _trained(part),
                ]
                cells += [*[""] * len(named), dots + _first_tokens(part["input_ids"], self.decode)]
                cells += map(_first_values, part["kept_tokens"].values())
                table.append([f"    .{node}", *cells])
                owners.append((number, segment))
        if self.head is not None:
            rows = ["row", *(f"{number:,}" for number, _ in owners)]
            table = [[row, *line] for row, line in zip(rows, table, strict=True)]
        return table, [segment for _, segment in owners]

    def _text_lines(self, segments: Sequence[ShownSegment], paint: Paint | None) -> Iterator[str]:
        """Yield all tokens of segments as text, and distinguish trained tokens from context.

        With color, trained tokens are bold and context is dim. Without color, trained tokens are between [[ and ]].
        """
        for segment in segments:
            first, last = segment["doc_start"], segment["doc_start"] + len(segment["input_ids"]) - 1
            what = f"document {segment['doc_id']:,}, tokens {first:,} to {last:,}, {_trained(segment)} trained"
            if segment["doc_id"] < 0:
                what = f"padding, {count_of(segment['extent'], 'token')}"
            origin = [f", {key} {segment[key]}" for key in self.origin if segment.get(key) is not None]
            head = f"segment {segment['segment']}: {what}{''.join(origin)}"
            yield head if paint is None else _painted(segment, head, paint)
            for number, part in enumerate(_branches(segment)):
                after = f"after {part['parent']}" if part["parent"] >= 0 else "at the beginning"
                yield f"node {number}, {after}, answer {part['answer']}:"
                yield _marked(part, self.decode, paint)
            if segment["doc_id"] >= 0 and not segment.get("nodes"):
                yield _marked(segment, self.decode, paint)


def show(
    packed: str | AnyPath | PackedDataset | Sequence[str | AnyPath] | Mapping[Any, float],
    row: int | Sequence[int] = 0,
    *,
    document: int | str | None = None,
    step: int | None = None,
    global_batch: int | str | Path | Mapping[str, Any] | None = None,
    seed: int | None = 0,
    epoch: int | None = None,
    tokenizer: str | Path | None = None,
    source: str | Path | Sequence[str | Path] | None = None,
    full: bool = False,
) -> RowContents:
    """Show rows of a packed dataset, segment by segment; all segments of a document; or the rows of a training step.

    Args:
        packed: folder of the packed dataset; several datasets, as in `load`; or a dataset from `load`.
        row: number of the row, or of several; -1 is the last.
        document: number of a document; show its segments instead of a row.
        step: number of an optimizer step of `BatchSampler`, from 1; show its rows, over all ranks.
        global_batch: rows per step, or a state of the sampler with all settings: a dict, or a JSON file of it.
        seed: seed of the sampler; None for the order on disk.
        epoch: epoch in which steps are counted, from 0; by default, from the start of training.
        tokenizer: path or Hub id of the tokenizer, to show text instead of token ids.
        source: source that was packed, if `packed` is an index.
        full: show all tokens, with trained tokens between [[ and ]].

    Returns:
        The segments. `print` shows the output of `packer show`; a notebook shows a table.

    Raises:
        PackerError: the row, document or step does not exist, or the dataset cannot be read.
    """
    with python_names():
        name = as_path(tokenizer)
        listed: Sequence[Any] = row if isinstance(row, Sequence) and row else [row]
        numbers = [as_whole("row", each) for each in listed]
        dataset = packed if isinstance(packed, PackedDataset) else load(packed, source=source)
        for each in dataset.datasets:
            _refuse_tokenless(each)
            if name is not None:
                _refuse_another(name, each)
        head = None if len(numbers) == 1 and document is None else ""
        if (step, global_batch, epoch) != (None, None, None):
            numbers, head = _rows_of_step(dataset, step, global_batch, seed, epoch)
        found = {} if document is None else _rows_of_document(dataset, str(document))
        if document is None:
            found = {each % len(dataset) if each < 0 else each: segments_of(dataset, each) for each in numbers}
        if head is not None and any(each.get("record", 0) is None for row in found.values() for each in row):
            head = f"{head}\n{_UNKNOWN}".strip()
        has_files = head is not None or sum(len(each.manifest.source.files) for each in dataset.datasets) > 1
        return RowContents(
            packed=_path(dataset),
            rows=found,
            decode=open_decoder(name) if name is not None else None,
            group_by=dataset.datasets[0].manifest.options.group_by,
            full=full,
            head=head,
            origin=("packed",) * (len(dataset.datasets) > 1) + ("file", "record") * has_files,
        )


def _rows_of_step(
    dataset: PackedDataset, step: int | None, global_batch: Any, seed: int | None, epoch: int | None
) -> tuple[list[int], str]:
    """Return (rows of a step, line that says which step it is). The arguments are those of `show`."""
    if step is None or global_batch is None:
        raise PackerError("the rows of a step follow from --step and --global-batch: give both, or neither")
    if isinstance(global_batch, (str, Path)):
        name = str(global_batch)
        try:
            global_batch = int(name) if name.isdecimal() else json.loads(Path(expanded(name)).read_bytes())
        except (OSError, ValueError) as error:
            fault = first_line(error)
            raise PackerError(f"--global-batch is {name}: give a number, or the JSON of a state: {fault}") from error
    if hasattr(global_batch, "__index__"):
        sampler = BatchSampler(dataset, global_batch=global_batch, seed=seed)
    else:
        sampler = BatchSampler.of_state(dataset, global_batch)
        if seed not in (0, sampler.seed):
            raise PackerError(f"--seed is {seed}, and the state of the sampler has {sampler.seed}: leave it out")
    of, before, numbers = sampler.rows_of_step(step, epoch=epoch)
    return numbers, f"step {before + 1:,} of {sampler.steps:,} in epoch {of}: {count_of(len(numbers), 'row')}"


def _path(dataset: PackedDataset) -> str:
    return ", ".join(str(each.path) for each in dataset.datasets)


def _refuse_tokenless(dataset: PackedDataset) -> None:
    """Raise a PackerError if the rows have no tokens to show."""
    packed = dataset.path
    if dataset.manifest.options.lengths_column is not None:
        raise PackerError(
            f"{packed} was packed from lengths alone, so there are no tokens to show: packer.rows('{packed}') has "
            "the documents of each row"
        )
    if input_ids_in(dataset.column_names) not in dataset.column_names:
        raise PackerError(
            f"{packed} is an index, whose rows have no tokens: name the dataset that was packed by --source"
        )


def _refuse_another(tokenizer: str, dataset: PackedDataset) -> None:
    """Raise a PackerError if the tokens were made by another tokenizer: its text would be wrong."""
    from packer.text.tokens import TextTokens

    text = dataset.manifest.source.text
    if text is None:  # the source held tokens; their tokenizer is unknown
        return
    if TextTokens(open_tokenizer(tokenizer)).content_hash != text.tokenizer:
        made = dataset.manifest.options.tokenizer
        raise PackerError(
            f"{dataset.path} was tokenized with {made}, and {tokenizer} is another tokenizer, in which its ids are "
            "other words: give the first one, or leave --tokenizer out"
        )


def _rows_of_document(dataset: PackedDataset, document: str) -> dict[int, list[ShownSegment]]:
    """Return the segments of a document, by row number."""
    if not document.isdecimal():
        raise PackerError(f"--document is {document!r}: give the number of a document")
    rows = dataset.find(int(document))
    if not rows:
        raise PackerError(f"{_path(dataset)} holds no document {document}: it is empty, dropped, or not in the source")
    return {row: [each for each in segments_of(dataset, row) if each["doc_id"] == int(document)] for row in rows}


def segments_of(dataset: PackedDataset, number: int) -> list[ShownSegment]:
    """Return the segments of a row, with its kept columns. Raises a PackerError if it does not exist."""
    try:
        row: Mapping[str, Any] = dataset[number]
    except (IndexError, OverflowError):
        rows = len(dataset)
        raise PackerError(f"{_path(dataset)} has no row {number}: there are {rows:,}, from 0 to {rows - 1:,}") from None
    packed = dataset.datasets[int(row.get(SOURCE, 0))]
    options, place = packed.manifest.options, 0
    numbers = {"extent": "seq_lengths", "doc_id": "doc_ids", "doc_start": "doc_starts"}
    lengths = row.get("seq_tokens", row["seq_lengths"])
    found = []
    for index, (length, document) in enumerate(zip(lengths, row["doc_ids"], strict=True)):
        tokens = slice(place, place + (length if document >= 0 else 0))
        segment: ShownSegment = {"segment": index} | {name: int(row[column][index]) for name, column in numbers.items()}
        columns = {"input_ids": input_ids_in(row), "labels": "labels"}
        segment |= {name: row[column][tokens] for name, column in columns.items() if column in row}
        if document >= 0:
            file, record = packed.manifest.place(int(document), row[RECORD_IDS][index] if RECORD_IDS in row else None)
            segment |= {"packed": str(packed.path), "file": file, "record": record}
        segment["kept"] = {name: json_value(row[name][index]) for name in options.kept if name != TREE}
        if TREE in options.kept and document >= 0:
            segment["nodes"] = [node._asdict() for node in nodes_of(row[TREE][index])]
        segment["kept_tokens"] = {name: row[name][tokens] for name in options.kept_tokens}
        found.append(segment)
        place += segment["extent"]
    return found


def _trained(segment: ShownSegment) -> str:
    """Return the number of trained tokens as text; "?" if the dataset has no labels."""
    return f"{(segment['labels'] >= 0).sum():,}" if "labels" in segment else "?"


def _branches(segment: ShownSegment) -> Iterator[ShownSegment]:
    """Yield the nodes of a tree, each with its values per token; nothing for an ordinary document."""
    for node in segment.get("nodes", ()):
        here = slice(node["first"], node["first"] + node["tokens"])
        kept = {name: values[here] for name, values in segment["kept_tokens"].items()}
        yield node | {name: segment[name][here] for name in ("input_ids", "labels")} | {"kept_tokens": kept}


def _painted(segment: ShownSegment, line: str, paint: Paint) -> str:
    """Color the line of a segment; neighbors have different colors."""
    if segment["doc_id"] < 0:
        return paint(line, dim=True)
    return paint(line, fg=_COLORS[segment["segment"] % len(_COLORS)])


def _marked(segment: ShownSegment, decode: Decode | None, paint: Paint | None) -> str:
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
