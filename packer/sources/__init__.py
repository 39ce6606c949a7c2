"""Sources: files, read in a fixed order as one sequence of documents.

    source = open_tokenized("data/", options)          find files and columns; no document is read yet
    source = spill_source(source, folder, progress)    decode files that cannot be memory-mapped
    documents = read_documents(source, progress)       check every document; lengths and identity of the source
    table = documents.table                            all documents by address, for the gather kernels

Five questions are answered in turn, and no answer waits for a later one. `documents.py` has the words of all.

1. Which files does a name mean?          `find_source.py`, `hugging_face.py`; endings are known by `formats.py`
2. How are they read?                     `formats.py`, `format_reader.py`, and a module for each format
3. Which columns do they have?            `column_types.py`
4. What do these mean?                    `meanings.py`, `token_columns.py`, `packed_rows.py`, `record_lists.py`; of
                                          text, `packer/text`; of lengths, `number_columns.py`
5. Which documents are in them?           `list_checks.py`, `inputs.py`, `spill.py`, `source.py`
"""
