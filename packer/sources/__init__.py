"""Documents read in a fixed order from Hugging Face datasets, Arrow, Parquet, JSON lines and text.

    source = open_source("data/", split=None)     find files and columns; no document is read yet
    source = open_text("data/", options)          the same for text, with a tokenizer
    source.spill_size(folder)                     estimate the disk space that decoding takes
    source = source.spill(folder, progress)       decode files that cannot be memory-mapped
    survey = source.survey(progress)              check every document; lengths and identity of the source
    table = source.table(survey.lengths())        all documents by address, for the gather kernels

What an input and a source are:

    documents.py         inputs, which yield documents; tables of checked documents; errors
    source.py            inputs in order, as one sequence of documents
    pairs.py, text_pairs.py    preference pairs of tokens and of text
    survey.py            a pass over a source: lengths, and its identity
    corpus.py            what is packed: one source, or several that are mixed
    survey_corpus.py     a pass over all sources, and the documents that a mixture takes of them
    origins.py           the source, document and copy that each document comes from
    source_order.py      documents in the order of the files, for verification
    rejections.py        stores the rejected documents

How they are opened, from a path or object to a source:

    tokenized_source.py  finds the files of a source, and opens tokenized ones
    text_source.py       opens text, which `text_decoder.py` tokenizes while it is read
    files/               files in folders, by globs, on the Hub; opening them
    formats.py           the registry of formats
    readers/             a reader for each format
    mapped/              Arrow, whose lists are addressed in place
    decoding/            everything else is decoded to Arrow streams
    packed/              packed datasets
    lengths_alone.py     lengths instead of documents

Columns of documents:

    columns/             names and types; checks of lists, masks and numbers
"""
