"""Print to the terminal. What comes from files cannot control it: control characters are shown, not sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import click

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tabs and line feeds, those that reorder text, and bytes of names that are not UTF-8."""


def visible(text: str) -> str:
    r"""Replace control characters by their names: "\x1b[2J" -> "\\x1b[2J"."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text on stdout, or on stderr."""
    click.echo(visible(text), err=err)


def echo_styled(text: str) -> None:
    """Print a text whose parts are `styled` or `visible`, in color also where stdout is no terminal."""
    click.echo(text, color=True)


def styled(text: str, **style: Any) -> str:
    """Return a text in a style of `click.style`."""
    return click.style(visible(text), **style)


def echo_json(content: object, default: Callable[[Any], Any] | None = None) -> None:
    """Print JSON, in which all control characters are escaped."""
    click.echo(json.dumps(content, indent=1, default=default).replace("\x7f", "\\u007f"))
