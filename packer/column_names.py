"""Names of the columns of a packed dataset, and the label without loss. Imports nothing."""

from __future__ import annotations

TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
"""Columns of max_len int32 values per row, in the order on disk."""

SEGMENT_COLUMNS = {
    "seq_lengths": "int32",
    "seq_tokens": "int32",
    "doc_ids": "int64",
    "doc_starts": "int32",
    "source_ids": "int32",
    "copy": "int32",
}
"""Columns of one value per segment (a padding tail is one) and their types, in the order on disk."""

ROLE = "role"
"""Column that says which answer of a preference pair a segment is: one of ROLES."""

ROLES = ("chosen", "rejected")
"""Answers of a preference pair: of documents 2i and 2i + 1."""

RECORD_IDS, ANSWER = "record_ids", "answer"
"""Columns with the number of a document's record in the source, and with the number of the document in its record."""

TREE = "tree"
"""Column with three numbers for each node of a segment that is a tree, see `packer.gather.prefix_trees`."""

NO_LOSS = -100
"""The label of a token without loss, as every trainer reads it (the `ignore_index` of cross-entropy)."""
