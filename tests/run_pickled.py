"""Run pickled tasks in another process, for test_pickled_tasks.py: `python -m tests.run_pickled PICKLED FOLDER`."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import xxhash


def summary(chunk):
    """Return the survey of a chunk as JSON values."""
    return [chunk.segments, chunk.histogram.tolist(), chunk.places.tolist(), repr(chunk.account)]


def main(pickled, folder):
    tasks, surveyor, write = pickle.loads(pickled.read_bytes())
    notes = {
        f"{task.stage}-{number}": xxhash.xxh3_128_hexdigest(task.task(number).to_bytes())
        for task, numbers in tasks
        for number in numbers
    }
    entries = folder / ".packer" / "committed"
    entries.mkdir(parents=True)
    write = replace(write, claimed=replace(write.claimed, building=folder, entries=entries))
    shards = {}
    for number in range(write.shards):
        file = write(number).file
        shards[file] = xxhash.xxh3_128_hexdigest((folder / file).read_bytes())
    chunk = None if surveyor is None else summary(surveyor(0))
    print(json.dumps({"notes": notes, "shards": shards, "chunk": chunk}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
