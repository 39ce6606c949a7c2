"""What `tests/test_algorithms.py` shares with other tests."""

import numba
import pytest

jit_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="too slow without compiled kernels")
