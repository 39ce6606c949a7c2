"""Every value of a JSON document by its path, and copies with another value at one."""

import copy
from collections.abc import Iterator
from typing import Any

Path = tuple[Any, ...]


def values_in(content: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of every value, including lists and objects."""
    yield path, content
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, part in parts:
        yield from values_in(part, (*path, key))


def replaced(content: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at a path; the value `...` removes the last key instead."""
    if not path:
        return value
    changed = copy.deepcopy(content)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed
