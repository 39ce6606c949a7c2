"""Sources: inputs read in a fixed order, as one sequence of documents.

    corpus = open_sources("data/", options)            find files and columns; no document is read yet
    spill_size(corpus, folder)                         estimate the disk space that decoding takes
    corpus = spill_corpus(corpus, folder, progress)    decode files that cannot be memory-mapped
    documents = read_documents(corpus, progress)       check every document; lengths and identity of the source
    table = documents.table                            all documents by address, for the gather kernels

Tokens, text, lengths and packed datasets are opened by modules of their own; `open_sources.py` chooses.
"""
