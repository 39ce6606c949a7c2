"""The commands, run in this process as a user types them."""

from click.testing import CliRunner, Result

from packer.cli import cli


def run(*arguments: object) -> Result:
    """Run a command."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def succeeded(*arguments: object) -> str:
    """Run a command that must succeed; return its result. Slow ones print progress on stderr."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object, words: tuple[str, ...] = (), code: int = 1) -> str:
    """Run a command that must fail in one line holding these words; return the line."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("packer: ")
    for word in words:
        assert word in line
    return line
