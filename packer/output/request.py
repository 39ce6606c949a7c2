"""How the options and source files of an output differ from those that are asked for, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer.options import PackOptions, options_of


def difference(begun: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """Describe the first difference between an output and a request: "with max_len 2048, not 4096".

    Args:
        begun: request of the output that is there: "files", "options", "text".
        request: what is asked for now.
    """
    one, other = ([file["name"] for file in part["files"]] for part in (begun, request))
    # Files come before options, because another source may bring another column or padding; but other weights mean
    # that other sources were meant.
    if one != other and begun.get("options", {}).get("weights") == request.get("options", {}).get("weights"):
        pair = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
        return "of other source files" + (f" ({pair[0]}, not {pair[1]})" if pair else "")
    defaults = {name: option.default for name, option in options_of(PackOptions).items()}
    for part, unnamed in (("options", defaults), ("text", {})):
        asked, made = _flat(request.get(part, {})), _flat(begun.get(part, {}))
        for name in dict.fromkeys([*asked, *made]):
            if made.get(name) != asked.get(name):
                found, wanted = (facts.get(name, unnamed.get(name)) for facts in (made, asked))
                return f"with {name} {_short(found)}, not {_short(wanted)}"
    return "of other source files" if one != other else "of a source that has changed since"


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten facts by source: {"web": {"eos": True}} -> {"eos of web": True}."""
    flat = {}
    for name, value in facts.items():
        flat.update(
            {f"{key} of {name}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return flat


def _short(value: object) -> str:
    """Write a value in one line of at most 60 characters; a chat template has many."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
