"""Compile chat templates as transformers does: in jinja2's sandbox, with the same names, filters and tags."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.nativetypes import NativeCodeGenerator
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

BEGIN_GENERATED, END_GENERATED = "\U000f5afe", "\U000f5aff"
"""Private-use characters that are written around {% generation %} tags, on request."""

MARK_BYTES = END_GENERATED.encode()[:3]
"""First bytes of all marks in UTF-8."""

_DICT_ATTRIBUTES = frozenset(dir(dict))
_NAMES_OF_CALLS = {"caller", "varargs", "kwargs"}  # names with another meaning within a call


@lru_cache(64)
def compiled(source: str, *, marked: bool = False) -> Template:
    """Compile a chat template. With `marked`, it writes `BEGIN_GENERATED` and `END_GENERATED` around {% generation %}.

    Raises a TemplateError if its syntax is wrong, or if it is nested too deeply.
    """
    with _compiling():
        return _environment(marked).from_string(source)


def parsed(source: str, *, marked: bool = False) -> nodes.Template:
    """Parse a chat template to the syntax tree that `compiled` compiles. Raises the same errors."""
    with _compiling():
        return _environment(marked).parse(source)


@lru_cache(64)
def names_read(source: str) -> frozenset[str]:
    """Return the names of the arguments that a template reads; empty if it cannot be compiled."""
    try:
        with _compiling():
            return frozenset(meta.find_undeclared_variables(parsed(source)))
    except TemplateError:
        return frozenset()


def compiled_tree(tree: nodes.Template, *, marked: bool = False) -> Template:
    """Compile a syntax tree, which is modified; `marked` as in `parsed`."""
    with _compiling():
        return _environment(marked).from_string(tree)


def text_node(text: str) -> nodes.Node:
    """Return a statement that writes a text."""
    return nodes.Output([nodes.TemplateData(text)])


def watch_loop(loop: nodes.For, mark: str) -> None:
    """Make a loop over `WatchedMessages` record its progress, and write a mark after each message."""
    loop.iter = _filtered(loop.iter, "begin_messages")
    end = nodes.Output([_filtered(nodes.Const(mark), "end_message")])
    _insert_before_continue(loop.body, end)
    loop.body.append(end)


def _insert_before_continue(body: list[nodes.Node], end: nodes.Node) -> None:
    for at, node in reversed([*enumerate(body)]):
        if isinstance(node, nodes.Continue):
            body.insert(at, end)
        elif isinstance(node, nodes.If):
            for part in (node.body, node.else_, *(each.body for each in node.elif_)):
                _insert_before_continue(part, end)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


@contextmanager
def _compiling() -> Iterator[None]:
    """Convert errors from the limits of Python's own compiler and parser to jinja2's TemplateError."""
    try:
        yield
    except (RecursionError, SyntaxError) as error:
        # CPython: "too many statically nested blocks", "parser stack overflow", "too many levels of indentation"
        is_deep = (
            isinstance(error, RecursionError | IndentationError) or "nested" in str(error) or "overflow" in str(error)
        )
        reason = "it is nested too deeply to be compiled" if is_deep else "its syntax is wrong"
        raise TemplateError(f"{reason} ({error})") from None


class Placeholder:
    """Content of a message that is not known when a chat is rendered. A character stands for it in the output.

    Templates may write it, strip it, add texts to it, and search it for texts, which are never found: `absent` collects
    them, and the output is valid for contents without them. If a template reads a placeholder in another way, rendering
    fails, and "" is added to `absent`. `text` is the character, with the white space at the ends of the content.
    """

    def __init__(self, text: str, absent: set[str]) -> None:
        self._text, self._absent = text, absent

    __class__ = property(lambda _: str)  # so that `is string` is true

    def __reduce__(self) -> tuple[type[Placeholder], tuple[str, set[str]]]:
        return type(self), (self._text, self._absent)

    def _refuse(self, *_: object) -> NoReturn:
        self._absent.add("")
        raise TemplateError("a content is not known")

    # jinja2 would catch the TypeError that others raise because this is no string, or print its class
    __len__ = __getitem__ = __float__ = __hash__ = __repr__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name not in ("strip", "lstrip", "rstrip"):
            self._refuse()
        return partial(self._stripped, getattr(str, name))

    def _stripped(self, strip: Any, characters: str | None = None) -> Placeholder:
        if characters is not None and not characters.isspace():
            self._refuse()
        return Placeholder(strip(self._text, characters), self._absent)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, part: object) -> bool:
        if type(part) is not str or len(self._text.strip()) > 1 or (len(self._text) > 1 and part != part.strip()):
            self._refuse()  # the part may overlap with text around the content
        self._absent.add(part)
        return False

    startswith = endswith = __contains__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other in self

    def __add__(self, other: object) -> Any:
        return _joined([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> Any:
        return _joined([other, self]) if isinstance(other, str) else NotImplemented


def _joined(values: Iterable[object]) -> Any:
    """Join what a template writes, as text. The result is a placeholder if there is one among the values."""
    parts = [*values]
    text = "".join(map(as_text, parts))
    unknown = next((part for part in parts if type(part) is Placeholder), None)
    return text if unknown is None else Placeholder(text, unknown._absent)


def as_text(value: Any) -> str:
    """Return a value as templates write it. For a placeholder, this is the character that stands for a content."""
    return value._text if type(value) is Placeholder else str(value)


class LoopProgress:
    """Progress of a template's loop over the messages of a chat, recorded by `WatchedMessages`."""

    def __init__(self) -> None:
        self.left_out = 0
        """Number of leading messages that the loop skips."""
        self.done = 0
        """Number of messages skipped or written so far."""
        self.looked_ahead = False
        """Whether the template has read a message beyond the current one."""


class WatchedMessages(Sequence[Any]):
    """Messages of a chat, or all but the first ones. Templates may use their names without underscores."""

    def __init__(self, messages: list[Any], progress: LoopProgress, left_out: int = 0) -> None:
        self._messages, self._progress, self._left_out = messages, progress, left_out

    def __iter__(self) -> Iterator[Any]:
        for at, message in enumerate(self._messages, self._left_out):
            if at > self._progress.done:
                self._progress.looked_ahead = True
            yield message

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            if at != slice(1, None):
                return self._all()[at]
            return WatchedMessages(self._messages[at], self._progress, self._left_out + 1)
        if not 0 <= at <= self._progress.done - self._left_out:
            self._progress.looked_ahead = True
        return self._messages[at]

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == other

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> list[Any]:
        self._progress.looked_ahead = True
        return self._messages


class _Rendering(Context):
    """Rendering context that also holds the progress of the loop over messages."""

    progress: LoopProgress | None = None


@pass_context
def _begin_messages(context: _Rendering, messages: Any) -> Any:
    """Record that a loop over messages begins, and return them."""
    if isinstance(messages, WatchedMessages):
        context.progress = messages._progress
        context.progress.left_out = context.progress.done = messages._left_out
    return messages


@pass_context
def _end_message(context: _Rendering, mark: str) -> str:
    """Record that a message has been written, and return the mark to write after it."""
    if context.progress is None:
        return ""
    context.progress.done += 1
    return mark


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox that reads `message.role`, `loop.index0` and names of a namespace directly, without checks.

    The base class gives the same results, but its checks take half of the rendering time.
    """

    marked = False
    """Whether marks are written around {% generation %} tags."""
    context_class = _Rendering
    code_generator_class = NativeCodeGenerator  # leaves the conversion to text to `concat`
    concat = staticmethod(_joined)

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is LoopContext or kind is _PlainNamespace) and not attribute.startswith("_"):
            with suppress(AttributeError):
                return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class _Generation(Extension):
    """The tag `generation`, which writes the text that it encloses."""

    tags = {"generation"}  # noqa: RUF012, as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # transformers renders the body through a CallBlock; a Scope sees the same names and is several times as fast
        inner: nodes.Stmt = nodes.Scope(body)
        names = {name.name for name in inner.find_all(nodes.Name)}
        if names & _NAMES_OF_CALLS or any(inner.find_all((nodes.Break, nodes.Continue))):
            inner = nodes.CallBlock(self.call_method("_write"), [], [], body)
        inner.set_lineno(line)
        is_marked = self.environment.marked  # type: ignore[attr-defined]
        return [text_node(BEGIN_GENERATED), inner, text_node(END_GENERATED)] if is_marked else [inner]

    def _write(self, caller: Any) -> Any:
        return caller()


class _PlainNamespace(Namespace):
    """Namespace that accepts no attribute with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`, so that an attribute may have this name
        namespace, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _PlainNamespace._check(name)
        Namespace.__init__(namespace, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _PlainNamespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
                f"{name!r}. Please rename the attribute."
            )


class _Dict:
    """Creates dictionaries without offering the attributes of the class `dict`."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


@lru_cache(2)
def _environment(marked: bool) -> _Sandbox:
    """Return the environment of `transformers.utils.chat_template_utils`.

    Templates come with tokenizers, which may be untrusted. They see only JSON types, which they cannot modify, and no
    Python names that would lead out of the sandbox. Loops and output size are not limited. Nothing random is offered,
    because packs must be reproducible.
    """
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.marked = marked
    environment.filters |= {"tojson": _to_json, "begin_messages": _begin_messages, "end_message": _end_message}
    del environment.globals["lipsum"], environment.filters["random"]
    environment.globals |= {"raise_exception": _raise_exception, "dict": _Dict(), "namespace": _PlainNamespace}
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON. jinja2's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
