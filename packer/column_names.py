"""Names and special values of the columns of a packed dataset."""

from __future__ import annotations

from collections.abc import Container

TREE_INPUT_IDS = "tree_input_ids"
"""Column of the tokens of rows with trees. Trainers that do not know trees find no `input_ids` and fail."""

TOKEN_COLUMNS = ("input_ids", TREE_INPUT_IDS, "labels", "position_ids")
"""Columns of max_len int32 values per row, in the order on disk; a row has only one of the first two."""

SEGMENT_COLUMNS = {
    "seq_lengths": "int32",
    "seq_tokens": "int32",
    "doc_ids": "int64",
    "doc_starts": "int32",
}
"""Columns of one value per segment, in the order on disk, and their types. A padding tail counts as a segment."""

ROLES = ("chosen", "rejected")
"""Answers of a preference pair."""

RECORD_IDS, ANSWER = "record_ids", "answer"
"""Columns with the number of a document's record in the source, and with the number of the document in its record; for
a tree, with the number of its first document."""

CONTENT_HASH = "packer_content_hash"
"""Column of decoded documents with the hash of their record, see `packer.sources.content_hashes`; not in rows."""

ROW_DOCUMENT = "packer_row_document"
"""Column of decoded documents with their number in a row that another tool packed; not in rows."""

TREE = "tree"
"""Column with three numbers for each node of a segment that is a tree, see `packer.token_memory.prefix_trees`."""

SOURCE = "source"
"""Column, in batches of several datasets, with the number of the row's dataset; a single value."""

NO_LOSS = -100
"""The label of a token without loss, as every trainer reads it (the `ignore_index` of cross-entropy)."""

PADDING = -1
"""The document id of a padding tail."""


def input_ids_in(columns: Container[str]) -> str:
    """Return the name of the column with the tokens of rows, given their columns."""
    return TREE_INPUT_IDS if TREE_INPUT_IDS in columns else "input_ids"
