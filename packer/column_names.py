"""Names and special values of the columns of a packed dataset."""

from __future__ import annotations

from collections.abc import Container

TREE_INPUT_IDS = "tree_input_ids"
"""Column with the tokens of rows with trees. Trainers that do not support trees find no `input_ids` and fail."""

TOKEN_COLUMNS = ("input_ids", TREE_INPUT_IDS, "labels", "position_ids")
"""Columns of max_len int32 values per row, in the order on disk; a row has only one of the first two."""

SEGMENT_COLUMNS = {"seq_lengths": "int32", "seq_tokens": "int32", "doc_ids": "int64", "doc_starts": "int32"}
"""Columns with one value per segment, in the order on disk, and their types. A padding tail counts as a segment."""

ROLES = ("chosen", "rejected")
"""Answers of a preference pair."""

RECORD_IDS, ANSWER = "record_ids", "answer"
"""Columns with the index of a document's record in the source, and the document's index in its record.

For a tree, they describe its first document.
"""

CONTENT_HASH = "packer_content_hash"
"""Column of decoded documents with the hash of their record; not in rows. See `packer.sources.content_hashes`."""

ROW_DOCUMENT = "packer_row_document"
"""Column of decoded documents with their index in a row that another tool packed; not in rows."""

LOSS_WEIGHTS = "loss_weights"
"""Column with the weight of each document or of each token in the loss; only if a weight is neither 0 nor 1."""

TREE = "tree"
"""Column with three numbers for each node of a segment that is a tree; see `packer.token_memory.prefix_trees`."""

SOURCE = "source"
"""Column in batches of combined datasets: the index of the row's dataset, a single value."""

NO_LOSS = -100
"""Label of a token without loss: the `ignore_index` of cross-entropy in every trainer."""

PADDING = -1
"""Document id of a padding tail."""


def input_ids_in(columns: Container[str]) -> str:
    """Return the name of the column with the tokens, given the columns of the rows."""
    return TREE_INPUT_IDS if TREE_INPUT_IDS in columns else "input_ids"
