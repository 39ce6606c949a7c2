"""The standard library's module for Zstandard, which Python 3.14 introduced, on every supported version."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd
