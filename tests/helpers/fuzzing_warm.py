"""The process whose forks use damaged files: it imports everything and loads the kernels when this is imported."""

from pathlib import Path
from tempfile import TemporaryDirectory

from packer.algorithms import jit
from tests.helpers import fuzzing

jit.compile_from_now_on()  # otherwise every fork would load Numba for itself
with TemporaryDirectory() as folder:
    for name in ("stream", "packed-shard", "kept-string"):
        whole, attempt = fuzzing.open_target(name, Path(folder) / name / "whole")
        assert attempt(whole, Path(folder) / name / "undamaged") is None
