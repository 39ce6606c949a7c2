"""What every option in a manifest must hold."""

from __future__ import annotations

from packer.facts.kinds import TEXT, Kind, Kinds, or_null
from packer.options import Option, PackOptions, options_of


def _kind_of(option: Option) -> Kinds:
    """Kind of an option: choices are any text, because a later version may have more of them."""
    kind = TEXT if option.choices else Kind(option.expected, option.accepts)
    if option.is_list:
        return [kind]
    return or_null(kind) if option.is_optional else kind


def option_kinds(declaration: type) -> dict[str, Kinds]:
    """Kinds of declared options by name; "?" marks those that may be absent, which is all but the required ones."""
    options = options_of(declaration)
    return {name if option.is_required else f"{name}?": _kind_of(option) for name, option in options.items()}


OPTIONS = option_kinds(PackOptions)
"""Kind of every option, by name; the name of one that may be absent ends in "?"."""
