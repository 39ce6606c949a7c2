"""Documents read in a fixed order from Hugging Face datasets, Arrow, Parquet, JSON lines and text.

    source = open_source("data/", split=None)     find files and columns; no document is read yet
    source = open_text("data/", options)          the same for text, with a tokenizer
    source.spill_size(folder)                     estimate the disk space that decoding takes
    source = source.spill(folder, progress)       decode once what cannot be memory-mapped
    survey = source.survey(progress)              check every document; lengths and identity of the source
    table = source.table(survey.lengths())        all documents by address, for the gather kernels

Modules by subject:

- Finding files: `tokenized_source.py`, `file_search.py` (folders and globs), `joined_paths.py`, `split_names.py`,
  `hugging_face.py` (saved datasets, `datasets.Dataset` objects, the Hub), `regular_files.py`, and `formats.py`, the
  registry of formats.
- Formats: `ipc.py`, `parquet.py` and `jsonl.py` have one input class each; `row_groups.py` and `lines.py` read such
  files for tokens and text alike.
- Documents that stay where they are: `mapped_lists.py` over the record batches of a mapped file (`record_batches.py`)
  or of a table in memory (`table_in_memory.py`); `value_column.py` looks up values beside the tokens.
- Checks: `documents.py` (what an input yields), `places.py` (where it stands), `checking.py`, `lengths.py`, `masks.py`;
  `column_checks.py`, `column_types.py` and `column_values.py` for names, types and values of columns (`json_blocks.py`
  for JSON lines).
- Records that are left out: `line_faults.py` finds unusable JSON lines, `unusable_lists.py` unusable lists, and
  `usable_text.py` encodes the other texts; `rejections.py` keeps what was found.
- Packed datasets: `open_packed.py` opens them as sources, `packed_rows.py` maps their rows, `segment_index.py` sorts
  segments by document, `joined_segments.py` puts documents together, and `packed_documents.py` is the input.
- Sources: `source.py`, `pairs.py` and `text_pairs.py` (preference pairs), and `mixture.py` satisfy the protocol in
  `open_documents.py`; `survey.py` counts a source, `draw_mixture.py` decides what a mixture takes,
  `origins.py` says which document of a mixture is which, `source_order.py` reads documents in the order of the files
  for verification.
- Decoding: `spill.py` decodes pieces of inputs (`decoded_pieces.py`) side by side on a `decode_pool.py`,
  `decoded_streams.py` writes them, `decoded_size.py` estimates their size.
- Text: `text_source.py` tokenizes records, read as `text_records.py` says by `json_records.py` (lines),
  `json_arrays.py`, `csv_records.py`, `text_files.py`, `parquet_records.py` and `arrow_records.py`.
- Histograms instead of documents: `length_counts.py`.
"""

from typing import TYPE_CHECKING

from packer.names_on_use import names_on_use

if TYPE_CHECKING:
    from packer.sources.documents import TURN_STARTS, SourceFile, TokenTable, value_message
    from packer.sources.open_documents import OpenDocuments, SourceOrder, Survey
    from packer.sources.source import Source
    from packer.sources.text.text_source import open_text
    from packer.sources.tokenized_source import open_source

__all__ = [
    "TURN_STARTS",
    "OpenDocuments",
    "Source",
    "SourceFile",
    "SourceOrder",
    "Survey",
    "TokenTable",
    "open_source",
    "open_text",
    "value_message",
]

__getattr__ = names_on_use(
    __name__,
    {
        "documents": (
            "SourceFile",
            "TURN_STARTS",
            "TokenTable",
            "value_message",
        ),
        "open_documents": (
            "OpenDocuments",
            "SourceOrder",
            "Survey",
        ),
        "source": ("Source",),
        "text.text_source": ("open_text",),
        "tokenized_source": ("open_source",),
    },
)
