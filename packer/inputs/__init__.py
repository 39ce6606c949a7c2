"""Inputs: files and datasets in memory, which yield their documents as checked Arrow lists.

    documents.py         what an input is, the batches of documents that it yields, and errors about these and files

Files, found and opened:

    hugging_face.py      files or tables of saved datasets, `datasets` objects and the Hub
    formats.py           the registry of formats; refuses pipes and devices

A reader for each format:

    format_reader.py     the protocol of readers; their blocks to documents, which pass through steps
    arrow_files.py       Arrow, which is decoded only if it cannot be mapped, or holds text
    parquet.py           Parquet
    json_files.py        JSON: an object per line, or one array; a block to token lists
    line_blocks.py       blocks of whole lines, of files of lines and of arrays; the object on a line
    text_files.py        CSV, and plain text with one document per file

Arrow, whose lists are addressed in place and not copied:

    mapped_files.py      maps a file, and decodes its record batches when needed; of an object, fetches headers first
    token_tables.py      tables in memory, documents as lists in these or in mapped files, and columns of values

Columns, and the steps that check them:

    column_types.py      names and types, in each file and across files; which type holds the values of two
    list_checks.py       lists of tokens, labels and masks: lengths, nulls, values; masks are applied
"""
