"""Modules of Megatron-Bridge without its `__init__` files, which import all models and so need Transformer Engine."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path


def bridge_folder() -> Path | None:
    """The folder of the installed Megatron-Bridge."""
    spec = importlib.util.find_spec("megatron")
    folders = [Path(path) / "bridge" for path in (spec.submodule_search_locations if spec else ())]
    return next((folder for folder in folders if folder.is_dir()), None)


def bridge(name: str) -> types.ModuleType:
    """Import the module `megatron.bridge.NAME`."""
    folder = bridge_folder()
    assert folder is not None
    for package in ("", ".data", ".data.builders"):
        if f"megatron.bridge{package}" not in sys.modules:
            empty = types.ModuleType(f"megatron.bridge{package}")
            empty.__path__ = [str(folder.joinpath(*package.split(".")))]
            sys.modules[empty.__name__] = empty
    return importlib.import_module(f"megatron.bridge.{name}")
