#!/usr/bin/env bash
# Expected: a stream of datasets that is shuffled and resumed by its state loses rows of the shuffle buffer, as its
#   documentation says, and yields each other row once.
# Found: rows come twice as well, because the state counts rows since the last refill of the buffer, and the resumed
#   stream skips as many rows of a buffer that is filled with others.
# Matters: a resumed epoch trains some rows twice, and others not at all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 bin/python - <<'END'
import sys
from collections import Counter
from itertools import islice

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

for shard in range(5):
    pq.write_table(pa.table({"row": range(200 * shard, 200 * shard + 200)}), f"{shard}.parquet", row_group_size=40)


def stream():
    rows = datasets.load_dataset("parquet", data_files="*.parquet", split="train", streaming=True, cache_dir="cache")
    return rows.shuffle(seed=0, buffer_size=100)


def resumed_after(stop):
    rows, rest = stream(), stream()
    seen = [row["row"] for row in islice(rows, stop)]
    rest.load_state_dict(rows.state_dict())
    counts = Counter(seen + [row["row"] for row in rest])
    return 1000 - len(counts), sum(count > 1 for count in counts.values())


found = {stop: resumed_after(stop) for stop in (50, 150, 700)}
for stop, (never, twice) in found.items():
    print(f"datasets {datasets.__version__}, resumed after {stop} of 1000 rows: {never} never, {twice} twice")
if not (found[50] == (0, 0) and all(twice and never for never, twice in (found[150], found[700]))):
    sys.exit("changed: resumed streams used to yield rows twice after the first refill of the buffer")
END
