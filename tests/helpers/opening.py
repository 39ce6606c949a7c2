"""Open single sources, without a pack."""

from packer.options import PackOptions
from packer.stores.paths import PathList
from packer.text.text_source import open_source as open_with_options


def open_source(source, *, pairs=False, **options):
    """Open a source of tokens, or of text with a tokenizer, by options of a pack. source: a path or a list of paths."""
    source = PathList(tuple(source)) if isinstance(source, list) else source
    return open_with_options(
        source, PackOptions(max_len=512, pairs=pairs, long="drop" if pairs else "split", **options)
    )
