"""Documents read in a fixed order from Hugging Face datasets, Arrow, Parquet, JSON lines and text.

    source = open_source("data/", split=None)     find files and columns; no document is read yet
    source = open_text("data/", options)          the same for text, with a tokenizer
    source.spill_size(folder)                     estimate the disk space that decoding takes
    source = source.spill(folder, progress)       decode files that cannot be memory-mapped
    survey = source.survey(progress)              check every document; lengths and identity of the source
    table = source.table(survey.lengths())        all documents by address, for the gather kernels

What an input and a source are:

    documents.py         inputs, which yield documents; tables of checked documents; errors
    places.py            where a document is in its file
    open_documents.py    the protocol of all sources: tokens, text, preference pairs, mixtures
    source.py            inputs in order, as one sequence of documents
    pairs.py             preference pairs
    mixtures/            several sources with weights
    survey.py            a pass over a source: lengths, and its identity
    source_order.py      documents in the order of the files, for verification

How they are opened, from a path or object to a source:

    tokenized_source.py  finds the files of a source, and opens tokenized ones
    text/                text of any format, tokenized while it is read
    files/               files in folders, by globs, on the Hub; opening them
    formats.py           the registry of formats
    mapped/              Arrow, whose documents are read in place
    json_lines/, parquet.py, row_groups.py    formats that are decoded
    packed/              packed datasets
    lengths_alone.py, length_counts.py, whole_numbers.py    lengths instead of documents
    decoding/            decodes files that cannot be mapped to Arrow streams

Checks of documents:

    checking.py          a table of documents, once all are valid
    lengths.py           lengths, and errors for invalid documents
    masks.py             mask columns: padding is stripped, labels are set
    columns/             names and types of columns, and values of extra ones
    unusable_lists.py    finds lists that cannot be used (text/ and json_lines/ find other records)
    usable_numbers.py    columns of whole numbers
    rejections.py        stores the rejected documents
"""
