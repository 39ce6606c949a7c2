"""Declared options as options of a command; see `packer.options`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packer.errors import PackerError
from packer.options import About, Option, options_of
from packer.paths import expanded
from packer.stores import RemotePath, is_remote

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic at run time since click 8.4 only

Function = TypeVar("Function", bound=Callable[..., Any])


class UserPath(click.Path):
    """A path in which `~` is the home folder, even where the shell does not expand it: in quotes and after `=`."""

    def __init__(self, *, exists: bool = False, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.Path`; an address in object storage becomes a `RemotePath`."""
        try:
            path = RemotePath.of(str(value)) if is_remote(value) else expanded(value)
        except PackerError as error:
            self.fail(str(error), param, ctx)
        if isinstance(path, RemotePath):
            return path
        if "://" in str(path):
            self.fail(f"{path} is neither a local path nor an address like s3://bucket/folder", param, ctx)
        return super().convert(path, param, ctx)


class FileContent(str):
    """The content of a file, which was named on the command line."""

    __slots__ = ()


class Content(UserPath):
    """A file whose content is the value, or the name of content that comes with packer."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        super().__init__(dir_okay=False)
        self.names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read the file."""
        if isinstance(value, FileContent) or value in self.names:
            return str(value)
        path = super().convert(value, param, ctx)
        if isinstance(path, RemotePath):
            self.fail(f"{path} is in object storage: copy it to a local file", param, ctx)
        try:
            content: str = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise PackerError(f"{path} cannot be read: {reason}; name a file, or {', '.join(self.names)}") from error
        if not content.strip():
            raise PackerError(f"{path} is empty: it must hold a Jinja template")
        return content


class Declared(_ParamType):
    """A value with the type and the limits of a declared option."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.type.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert and check a value, which is a string, or the default."""
        option = self.option
        try:
            if option.about.convert is not None:
                value = option.converted(value)
            elif isinstance(value, str):
                value = option.type(value)
        except (ValueError, PackerError) as error:
            reason = str(error) if isinstance(error, PackerError) else f"{value!r} is not {option.kind.name}"
            self.fail(reason, param, ctx)
        for one in value if isinstance(value, tuple) else (value,):
            if not option.kind.fits(one):
                self.fail(f"{one!r} is not {option.kind.name}", param, ctx)
        return value


class DeclaredOption(click.Option):
    """An option of a command, made from a declaration."""

    def __init__(self, param_decls: Sequence[str], *, declared: Option) -> None:
        self.declared = declared
        about, default = declared.about, declared.default
        settings: dict[str, Any] = {"metavar": about.metavar}
        settings |= {"required": True} if declared.is_required else {"default": default}
        if declared.type is bool:
            settings |= {"flag_value": False, "type": click.BOOL} if default is True else {"is_flag": True}
        else:
            settings |= {"type": _type_of(declared), "multiple": declared.is_list and about.convert is None}
            settings["show_default"] = about.default_words is None and default not in (None, MISSING, ())
        flags = [*declared.flags, declared.name, *param_decls]
        super().__init__(flags, help=_help(declared, repeats=settings.get("multiple", False)), **settings)


def _help(option: Option, *, repeats: bool) -> str:
    """The sentence of an option, with its choices unless they are shown next to its name, and its default in words."""
    about = option.about
    parts = [about.off if option.default is True and about.off is not None else about.help]
    if option.choices and about.metavar is not None:
        parts.append(f"One of: {', '.join(option.choices)}.")
    if repeats and not about.says_repeats:
        parts.append("Repeat it for several.")
    if about.default_words is not None:
        parts.append(f" [default: {about.default_words}]")
    return " ".join(parts)


def _type_of(option: Option) -> _ParamType:
    if option.about.is_file:
        return Content(option.choices)
    if option.type is Path:
        return UserPath()
    if option.choices and option.about.convert is None:
        return click.Choice(option.choices)
    return Declared(option)


def options(
    declaration: type, *names: str, without: Collection[str] = (), **changes: Any
) -> Callable[[Function], Function]:
    """Add declared options to a command.

    Args:
        declaration: a dataclass that declares options; see `packer.options.option`.
        names: those to add; all that the command line has when empty.
        without: those to leave out.
        changes: fields of `Option` or `About` that differ in this command.
    """
    declared = options_of(declaration)
    chosen = [declared[name] for name in names or declared if declared[name].about.on_command and name not in without]

    def add(function: Function) -> Function:
        for option in reversed(chosen):
            function = click.option(cls=DeclaredOption, declared=_changed(option, **changes))(function)
        return function

    return add


def _changed(option: Option, **changes: Any) -> Option:
    of_about = {field.name for field in fields(About)}
    about = replace(option.about, **{name: value for name, value in changes.items() if name in of_about})
    others = {name: value for name, value in changes.items() if name not in of_about}
    return replace(option, about=about, **others)


def values_of(declaration: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a command that belong to a declaration: keyword arguments for it."""
    return {name: values[name] for name in options_of(declaration) if name in values}
