"""Sources: files, read in a fixed order as one sequence of documents.

    source = open_tokenized("data/", options)          find files and columns; no document is read yet
    source = spill_source(source, folder, progress)    decode files that cannot be memory-mapped
    documents = read_documents(source, progress)       check every document; lengths and identity of the source
    table = documents.table                            all documents by address, for the gather kernels

Five questions are answered in this order; no answer depends on a later one. `documents.py` defines the common types.

1. Which files does a name mean?          `find_source.py`, `hugging_face.py`; `formats.py` knows the endings
2. How are they read?                     `formats.py`, `format_reader.py`, and a module for each format
3. Which columns do they have?            `column_types.py`
4. What do the columns mean?              `meanings.py`, `token_columns.py`, `packed_rows.py`, `record_lists.py`; for
                                          text, `packer/text`; for lengths, `number_columns.py`
5. Which documents are in them?           `list_checks.py`, `inputs.py`, `spill.py`, `source.py`
"""
