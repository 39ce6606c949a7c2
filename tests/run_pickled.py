"""Run pickled tasks in another process, for test_pickled_tasks.py."""

from dataclasses import replace

import xxhash


def summary(chunk):
    """Return the survey of a chunk as JSON values."""
    return [chunk.segments, chunk.histogram.tolist(), chunk.places.tolist(), repr(chunk.account)]


def run(tasks, surveyor, write, folder):
    """Return hashes of the notes and shards that the tasks make in a folder, and the summary of a chunk."""
    notes = {
        f"{task.stage}-{number}": xxhash.xxh3_128_hexdigest(task.task(number).to_bytes())
        for task, numbers in tasks
        for number in numbers
    }
    (folder / ".packer" / "committed").mkdir(parents=True)
    write = replace(write, claimed=replace(write.claimed, store=replace(write.claimed.store, root=folder)))
    shards = {}
    for number in range(write.ends[-1]):
        file = write(number).file
        shards[file] = xxhash.xxh3_128_hexdigest((folder / file).read_bytes())
    chunk = None if surveyor is None else summary(surveyor(0))
    return {"notes": notes, "shards": shards, "chunk": chunk}
