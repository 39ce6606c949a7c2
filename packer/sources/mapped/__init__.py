"""Arrow files and tables, whose documents are addressed in place and not copied.

ipc.py             Arrow streams and files, on a disk or in object storage
ipc_headers.py     headers of their messages in object storage, fetched without the bodies
record_batches.py  record batches of files and tables, and columns of them, decoded each time they are needed
mapped_lists.py    documents as lists in them
"""
