"""Columns of a source: their names, types and values. Checks are steps that a record batch passes through.

column_checks.py   names and types of columns, in each file and across files
column_types.py    which types can be kept, which type holds the values of two, and values from JSON
list_checks.py     lists of tokens, labels and masks: lengths, nulls, values; tables of checked documents
mask_columns.py    masks: padding is stripped, labels are set
number_columns.py  columns of whole numbers
"""
