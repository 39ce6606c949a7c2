"""Columns of a source: their names, types and values. Checks are steps that a record batch passes through.

column_checks.py   names and types of columns, in each file and across files
column_types.py    which types can be kept, and which type holds the values of two
column_values.py   values read from JSON, converted to one type
value_column.py    a column whose values are decoded on demand
list_checks.py     lists of tokens, labels and masks: lengths, nulls, values
mask_columns.py    masks: padding is stripped, labels are set
number_columns.py  columns of whole numbers
"""
