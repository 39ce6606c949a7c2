"""Print to the terminal. What comes from files cannot control it: control characters are shown, not sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from packer.plain_text import visible


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
