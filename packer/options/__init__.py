"""The options of a pack.

`pack_options.py` is every option that shapes the bytes, `checks.py` what they may be, `sizes.py` bytes in words.
"""

from packer.options.checks import EMITTED, TRAIN_CHOICES, UNTRAINED
from packer.options.pack_options import PackOptions
from packer.options.sizes import byte_size, parse_size

__all__ = ["EMITTED", "TRAIN_CHOICES", "UNTRAINED", "PackOptions", "byte_size", "parse_size"]
