"""The process whose forks use damaged files: it imports everything and loads the kernels when this is imported."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests import fuzzing

with TemporaryDirectory() as folder:
    for name in ("stream", "packed-shard", "kept-string"):
        whole, attempt = fuzzing.open_target(name, Path(folder) / name / "whole")
        assert attempt(whole, Path(folder) / name / "undamaged") is None
