"""Types of the options in a manifest, to check a file with."""

from __future__ import annotations

from packer.facts.kinds import TEXT, Kind, Kinds, or_null
from packer.options import Option, PackOptions, options_of


def _kind_of(option: Option) -> Kinds:
    """Return the kind of an option; a choice may be any text, because a later version may add some."""
    kind = TEXT if option.choices else Kind(option.expected, option.accepts)
    if option.is_list:
        return [kind]
    return or_null(kind) if option.is_optional else kind


def option_kinds(declaration: type) -> dict[str, Kinds]:
    """Return the kinds of declared options by name, with "?" after the name of each that may be absent."""
    options = options_of(declaration)
    return {name if option.is_required else f"{name}?": _kind_of(option) for name, option in options.items()}


OPTIONS = option_kinds(PackOptions)
"""Kinds of the options of a pack."""
