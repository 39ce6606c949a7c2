"""Where documents come from: Hugging Face datasets, Arrow, Parquet and JSONL, read in one fixed order.

    source = open_source("data/", split=None)     what is there, which columns, which files
    source = source.spill(folder, progress)       decode once what cannot be mapped
    counts = scan(source, progress)               every length, the token total, the identity
    table = source.table(counts.lengths)          all documents by address, for the gather kernels

`opening.py` finds the files; `ipc.py`, `parquet.py` and `jsonl.py` hold one input class each; `hugging_face.py` opens
saved datasets, `datasets.Dataset` objects and the Hub; `documents.py` checks what they yield, `source.py` strings it
together, `scanning.py` counts it and `spill.py` decodes it; `length_counts.py` reads a histogram in place of documents.
A new input is one class with the attributes of `Input` and one line in `opening.py`.
"""

from packer.sources.documents import SourceFile, TokenTable, value_message
from packer.sources.opening import open_source
from packer.sources.scanning import Scan, scan
from packer.sources.source import Source

__all__ = ["Scan", "Source", "SourceFile", "TokenTable", "open_source", "scan", "value_message"]
