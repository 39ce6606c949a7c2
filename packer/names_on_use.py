"""Names of a package whose modules are imported when the name is first used.

A command needs only a part of most packages: packing tokens needs neither a reader of text nor a report. Therefore a
package from which many modules import lists the module of each of its names, and imports none of them itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def names_on_use(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

        __getattr__ = names_on_use(__name__, {"packing": ("pack", "PackResult")})

    No name may be that of a module of the package: importing the module would hide it.

    Args:
        package: name of the package.
        homes: names by the module of the package that defines them; a module without names is itself a name.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    modules = {home for home, names in homes.items() if not names}

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return get
