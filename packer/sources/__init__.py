"""Where documents come from: Hugging Face datasets, Arrow, Parquet and JSONL, read in one fixed order.

    source = open_source("data/", split=None)     what is there, which columns, which files
    source = open_text("data/", options)          the same of text, with a tokenizer
    source.spill_size(folder)                     what that is going to take on disk
    source = source.spill(folder, progress)       decode once what cannot be mapped
    counts = scan(source, progress)               every length, the token total, the identity
    table = source.table(counts.lengths)          all documents by address, for the gather kernels

`opening.py` finds the files (`file_search.py`: in folders and globs; `split_names.py`: of a split); `ipc.py`,
`parquet.py` and `jsonl.py` hold one input class each (`row_groups.py` and `lines.py`: what is in such a file, whatever
it holds). `mapped_lists.py` is what needs no decoding, in record batches of a mapped file (`record_batches.py`) or of a
table in memory (`table_in_memory.py`), with values beside the tokens (`value_column.py`); `hugging_face.py` opens saved
datasets, `datasets.Dataset` objects and the Hub. `documents.py` and `checking.py` check what they yield,
`column_checks.py` its columns, `column_types.py` and `column_values.py` find the types that hold the values of other
columns (`json_blocks.py`: those of JSON lines), `source.py` strings it together and `scanning.py` counts it. `spill.py`
decodes pieces of the inputs side by side (`crew.py`: the threads), `streams.py` writes them and `sizing.py` foresees
their size. `length_counts.py` reads a histogram in place of documents. `text.py` tokenizes what `records.py` and
`arrow_records.py` read, and `pairs.py` reads the two lists of a preference pair as two documents.
`mixture.py` opens several sources as one, `draw_mixture.py` decides what is taken of each, `origins.py` says which
document is which, and `mixture_order.py` puts them in the order of their sources for a check.
A new input is one class with the attributes of `Input` and one line in `opening.py`.
"""

from packer.sources.documents import TURN_STARTS, SourceFile, TokenTable, value_message
from packer.sources.opening import open_source
from packer.sources.scanning import IdentityCounter, Scan, identify, scan
from packer.sources.source import Source
from packer.sources.text import open_text

__all__ = [
    "TURN_STARTS",
    "IdentityCounter",
    "Scan",
    "Source",
    "SourceFile",
    "TokenTable",
    "identify",
    "open_source",
    "open_text",
    "scan",
    "value_message",
]
