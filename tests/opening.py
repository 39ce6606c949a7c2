"""Open single sources, without a pack."""

from packer.sources import text_source
from packer.sources.find_source import find_source
from packer.sources.tokenized_source import open_tokens


def open_source(source, *, split=None, **options):
    """Open a source of tokens."""
    return open_tokens(find_source(source, split), **options)


def open_text(source, options, **others):
    """Open a source of text."""
    return text_source.open_text(find_source(source, None), options, **others)
