"""The errors a user can mend. Imports nothing."""


class PackerError(Exception):
    """A user's mistake or a machine's limit, told in one line: the value, the limit and the remedy.

    The command line prints it without a traceback and exits with 1. A name quoted from a damaged file may hold line
    breaks: they become spaces.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class SourceError(PackerError):
    """The source's content is at fault, so that repeating the same command cannot help.

    A pack that meets it removes what it had begun to write.
    """
