"""`python -m packer`: the same command as `packer`."""

from packer.cli import main

main()
