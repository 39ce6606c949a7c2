"""Columns of a source, and the values of its extra columns.

column_checks.py  names and types of columns, in each file and across files
column_types.py   which types can be kept, and which type holds the values of two
column_values.py  values read from JSON, converted to one type
value_column.py   a column whose values are decoded on demand
"""
