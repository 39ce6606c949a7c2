"""`python cli.py pack ...` from a checkout: the same command as `packer`."""

from packer.__main__ import main

if __name__ == "__main__":
    main()
