"""All options that affect the bytes of a packed dataset, as they are stored in its manifest."""

from __future__ import annotations

from dataclasses import dataclass

from packer.algorithms import get_algorithm
from packer.errors import PackerError
from packer.json_record import read_fields
from packer.options.option import options_of, values_of
from packer.options.row_options import RowOptions
from packer.paths import tokenizer_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions(RowOptions):
    """Every option that affects the bytes of a packed dataset; a PackerError says which values cannot be combined."""

    def to_dict(self) -> dict[str, object]:
        """The options as stored in a manifest: `max_len`, and all others whose values are not the defaults."""
        options = RowOptions.to_dict(self)
        if "algorithm" in options:
            options["algorithm"] = get_algorithm(self.algorithm).name
        if self.tokenizer is not None:
            options["tokenizer"] = tokenizer_name(self.tokenizer)
        return options

    @classmethod
    def from_dict(cls, content: object, name: str = "") -> PackOptions:
        """Read the options of a manifest; unknown ones, which later versions added, are left out.

        Raises:
            KeyError: `max_len` is missing.
            TypeError: a value has another type, is outside its limits, or cannot be combined with another.
        """
        declared = options_of(cls)
        optional = frozenset(name for name, option in declared.items() if not option.is_required)
        types = {name: option.json_type for name, option in declared.items()}
        found = read_fields(content, types, optional, name=name)
        try:
            return cls(**values_of(cls, found))
        except PackerError as error:
            raise TypeError(f"the options in the manifest are damaged: {error}") from error


_sentences = [f"    {name}: {option.help}" for name, option in options_of(PackOptions).items()]
PackOptions.__doc__ = "\n".join([f"{PackOptions.__doc__}\n\nAttributes:", *_sentences])
