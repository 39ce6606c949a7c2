"""Chat templates, compiled as transformers does: in jinja2's sandbox, with the same names, filters and tags."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes
    from jinja2.parser import Parser

BEGIN_GENERATED, END_GENERATED = "\U000f5afe", "\U000f5aff"
"""Private-use characters that are written around what {% generation %} encloses, on request."""

_DICT_ATTRIBUTES = frozenset(dir(dict))
_NAMES_OF_CALLS = {"caller", "varargs", "kwargs"}  # which mean something else within a call


@lru_cache(64)
def compiled(source: str, *, marked: bool = False) -> Template:
    """Compile a chat template.

    Args:
        source: the template.
        marked: write `BEGIN_GENERATED` and `END_GENERATED` around what {% generation %} encloses.

    Raises:
        jinja2.TemplateSyntaxError: its syntax is wrong.
    """
    return _environment(marked).from_string(source)


def parsed(source: str, *, marked: bool = False) -> nodes.Template:
    """Parse a chat template to the syntax tree that `compiled` compiles.

    Raises:
        jinja2.TemplateSyntaxError: its syntax is wrong.
    """
    return _environment(marked).parse(source)


@lru_cache(2)
def _environment(marked: bool) -> Environment:
    """Make the environment of `transformers.utils.chat_template_utils`.

    Templates come with tokenizers, which may be untrusted. They see JSON types only, cannot change them, and get no
    Python names that would lead out of the sandbox.
    """
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Sandbox(ImmutableSandboxedEnvironment):
        """Reads `message.role` directly; the class it derives from first looks for an attribute of the dictionary."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
                return obj[attribute]
            return super().getattr(obj, attribute)

    class Generation(Extension):
        """The tag `generation`, which writes what it encloses."""

        tags = {"generation"}  # noqa: RUF012, as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # transformers makes a call of the body; a scope has the same names, and is rendered several times as fast
            inner: nodes.Stmt = nodes.Scope(body)
            names = {name.name for name in inner.find_all(nodes.Name)}
            if names & _NAMES_OF_CALLS or any(inner.find_all((nodes.Break, nodes.Continue))):
                inner = nodes.CallBlock(self.call_method("_write"), [], [], body)
            inner.set_lineno(line)
            return [mark(BEGIN_GENERATED), inner, mark(END_GENERATED)] if marked else [inner]

        def _write(self, caller: Any) -> Any:
            return caller()

    def mark(character: str) -> nodes.Node:
        return nodes.Output([nodes.TemplateData(character)])

    class PlainNamespace(Namespace):
        """Takes no attribute that begins with an underscore."""

        def __init__(*args: Any, **kwargs: Any) -> None:  # so that an attribute may be called self
            namespace, *rest = args
            attributes = dict(*rest, **kwargs)
            for name in attributes:
                PlainNamespace._check(name)
            Namespace.__init__(namespace, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            PlainNamespace._check(name)
            super().__setitem__(name, value)

        @staticmethod
        def _check(name: Any) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(
                    "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
                    f"{name!r}. Please rename the attribute."
                )

    class Dict:
        """Makes dictionaries, without the attributes of the class `dict`."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args, **kwargs)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": _strftime_now,
        "dict": Dict(),
        "namespace": PlainNamespace,
    }
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON; jinja2's own filter escapes the characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:  # templates may name the argument
    return datetime.now().strftime(format)
