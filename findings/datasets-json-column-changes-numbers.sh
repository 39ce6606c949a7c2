#!/usr/bin/env bash
# Expected: numbers that Python's json reads exactly come out of load_dataset("json") as they are, or as an error.
# Found: where the values of a field have several types, as arguments of tools do, datasets makes it a Json column and
#   decodes it with a fast parser that rounds: 0.3 is 0.30000000000000004, and an integer above 2**64 loses its upper
#   bits. In a field of numbers alone, 0.3 stays 0.3.
# Matters: tool calls are training targets. Models learn to answer 0.30000000000000004 where people wrote 0.3, and ids
#   of 21 digits become other ids.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 bin/python - <<'END'
import json
import sys

import datasets

arguments = [{"share": 0.3}, {"id": 123456789012345678901}, {"name": "left"}, ["left", 2]]
with open("calls.jsonl", "w") as lines:
    lines.writelines(json.dumps({"arguments": each, "plain": 0.3}) + "\n" for each in arguments)
datasets.disable_progress_bars()
rows = datasets.load_dataset("json", data_files="calls.jsonl", split="train", cache_dir="cache")
print(f"datasets {datasets.__version__}, features {rows.features}")
found = rows["arguments"][:2]
for wrote, read in zip(arguments, found):
    print(f"wrote {wrote}, read {read}")
print(f"plain: {rows['plain'][0]}")
if found != [{"share": 0.1 + 0.2}, {"id": 123456789012345678901 % 2**64}] or rows["plain"][0] != 0.3:
    sys.exit("changed: numbers of a Json column used to be rounded")
END
