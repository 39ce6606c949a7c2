"""Sources: inputs read in a fixed order, as one sequence of documents.

    corpus = open_sources("data/", options)            find files and columns; no document is read yet
    spill_size(corpus, folder)                         estimate the disk space that decoding takes
    corpus = spill_corpus(corpus, folder, progress)    decode files that cannot be memory-mapped
    documents = read_documents(corpus, progress)       check every document; lengths and identity of the source
    table = documents.table                            all documents by address, for the gather kernels

What is packed, as data:

    source.py            inputs in order, as one sequence of documents; those that are rejected
    corpus.py            one source, or several that are mixed; the source, document and copy behind each document
    pairs.py             preference pairs: the answers of a record in turn

Functions of these:

    decoded_pieces.py    cuts inputs into pieces, writes the stream, note and rejected documents of each; their size
    spill.py             decodes an open source to one whose documents are mapped
    survey.py            a pass over all sources: lengths, identity, and the documents that a mixture takes of them
    watch_source.py      detects files that change while they are read

How they are opened, from a path or object to a source:

    open_sources.py      opens a source or a mixture, with the options of a pack, or that of a packed dataset
    find_source.py       finds the files or the table of a source: in a folder, by a glob, in a split, at several paths
    tokenized_source.py  opens tokenized and packed ones, and pairs of them
    text_source.py       opens text, which is tokenized while it is read
    number_columns.py    lengths instead of documents, and other columns of whole numbers

A packed dataset as a source, its documents taken out of the rows in the order of their numbers:

    segment_index.py     segments of all rows, sorted by document; verification reads these, too
    packed_documents.py  the mapped rows, and the input, which puts the pieces of documents together
"""
