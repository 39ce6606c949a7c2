"""Whether output is colored."""

from __future__ import annotations

import os
import sys


def wants_color() -> bool:
    """Return whether stdout is a terminal, unless NO_COLOR or FORCE_COLOR is set (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()
