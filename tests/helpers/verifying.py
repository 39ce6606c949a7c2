"""What `tests/test_verifying.py` shares with other tests."""

from itertools import islice

import pyarrow as pa

from tests.helpers.packed_rows import rewrite_shards, rows_on_disk


def change_rows(out, change):
    """Change the rows of a packed dataset, a list of dictionaries, and rewrite them with matching hashes."""
    rows = rows_on_disk(out)
    change(rows)
    left = iter(rows)
    rewrite_shards(out, lambda table: pa.Table.from_pylist(list(islice(left, len(table))), table.schema))
