"""How much random tests try: `PACKER_FUZZ=10 pytest ...` damages ten times as many files, and packs as many sources."""

import os

FUZZ = int(os.environ.get("PACKER_FUZZ", "1"))
