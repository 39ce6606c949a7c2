"""The files of a packed dataset on the Hugging Face Hub beside its shards, with a dataset card: README.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files as assets
from pathlib import Path

from jinja2 import StrictUndefined, Template

from packer.column_names import ANSWER, LOSS_WEIGHTS, RECORD_IDS, TREE, TREE_INPUT_IDS
from packer.loader.dataset import PackedDataset
from packer.plain_text import count_of
from packer.shards.files import CARD, MANIFEST
from packer.stores.hub import called

_MEANINGS = {
    "input_ids": "token id; {pad_id} for padding",
    TREE_INPUT_IDS: 'token id in a row with trees, which only `format="tree"` reads; {pad_id} for padding',
    "labels": "token id, not shifted; -100 (no loss) for padding, the first token of a segment, and untrained tokens",
    "position_ids": "position, which restarts at 0 with each segment",
    "seq_lengths": "length, in the order of the row; the lengths add up to {max_len:,}",
    "seq_tokens": "length without the padding that follows the document; 0 for the padding at the end of the row",
    "doc_ids": "index of the document in the source; -1 for the padding at the end of the row",
    "doc_starts": "position in the document at which the segment begins: 0, unless the document was split",
    RECORD_IDS: "index of the record in the source; 0 for padding",
    ANSWER: "index of the document in its record; for a tree, of its first document",
    TREE: "of each node: number of tokens, index of its parent or -1, index of the document that trains it; or null",
    LOSS_WEIGHTS: "weight in the loss, which is sum(weight x loss) / sum(weight); 0 for padding",
}


def hub_files(dataset: PackedDataset, files: list[str]) -> Mapping[str, bytes]:
    """Return the contents, by name, of the dataset's files other than shards, and of its card."""
    manifest, options = dataset.manifest, dataset.manifest.options
    template = (assets("packer.exporting") / "dataset_card.md.jinja").read_text(encoding="utf-8")
    card = Template(template, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True).render(
        name=called(Path(str(dataset.path)).resolve()).name,
        split="test" if options.is_holdout else "train",
        rows=count_of(manifest.rows, "row"),
        options=options,
        totals=manifest.totals,
        text=manifest.source.text,
        arguments=', format="tree"' * options.has_trees + ', loss_weights="weight"' * dataset.has_weights,
        columns=_columns(dataset),
    )
    return {CARD: card.encode()} | {name: (dataset.path / name).read_bytes() for name in (MANIFEST, *manifest.files)}


def _columns(dataset: PackedDataset) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each column, what has a value in it (token or segment), and its meaning."""
    for name in dataset.types:
        is_token = name in (*dataset.manifest.row_format.token_columns, *dataset.manifest.options.kept_tokens)
        per, of = ("token", "token") if is_token else ("segment", "document")
        meaning = _MEANINGS.get(name, f"value of the {of} in the source; 0 or null for padding")
        yield name.replace("|", "\\|"), per, meaning.format(pad_id=dataset.pad_id, max_len=dataset.max_len)
