"""Sources: inputs read in a fixed order, as one sequence of documents.

    source = open_source("data/", options)             find files and columns; no document is read yet
    source = spill_source(source, folder, progress)    decode files that cannot be memory-mapped
    documents = read_documents(source, progress)       check every document; lengths and identity of the source
    table = documents.table                            all documents by address, for the gather kernels

Tokens, text and lengths are opened by modules of their own; `open_sources.py` chooses.
"""
