"""What a pickle calls for functions and code by value, with their source text."""

from __future__ import annotations

import builtins
import hashlib
import linecache
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

from ..errors import UnpicklingError
from ..references import static_vars
from .checks import _check
from .identities import identities

__all__ = [
    "Lines",
    "fill_cell",
    "fill_function",
    "make_cell",
    "make_code",
    "make_function",
    "make_namespace",
    "module_namespace",
    "register_source",
    "renamed",
    "source_file",
    "texts",
]


#: File name -> text and first line of what came in pickles, so that it can go on from here with its text.
texts: dict[str, tuple[str, int]] = {}


def source_file(function: types.FunctionType, text: str, first_line: int) -> str:
    """The name of the file that a function by value comes from, made from its text: equal texts are one file."""
    digest = hashlib.sha256(f"{first_line}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<safepickle {function.__code__.co_name.strip('<>')} {digest}>"


def renamed(code: types.CodeType, filename: str) -> types.CodeType:
    """The code, and the code inside it, as if it came from that file."""
    constants = tuple(renamed(c, filename) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


class Lines(list[str]):
    """The lines of a function under their original numbers: blank ones in front, which take no memory."""

    def __init__(self, text: str, first_line: int) -> None:
        super().__init__(text.splitlines(keepends=True))
        self._blank = max(first_line - 1, 0)

    def __len__(self) -> int:
        return self._blank + super().__len__()

    def __iter__(self) -> Iterator[str]:
        yield from ("\n" for _ in range(self._blank))
        yield from super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = operator.index(index)
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError("list index out of range")
        return "\n" if position < self._blank else super().__getitem__(position - self._blank)


def register_source(filename: str, text: str, first_line: int) -> None:
    """Make the text known to ``linecache``, so that ``inspect.getsource``, tracebacks and ``@triton.jit`` find it."""
    for value, kind in ((filename, str), (text, str), (first_line, int)):
        _check(value, kind, "a part of a source text")
    if not filename.startswith("<safepickle "):
        raise UnpicklingError(f"malformed pickle: {filename!r} is not the name of a text that came in a pickle")
    texts.setdefault(filename, (text, first_line))
    if filename not in linecache.cache:
        # A modification time of None survives linecache.checkcache.
        linecache.cache[filename] = (len(text), None, Lines(text, first_line), filename)


def make_code(tag: str, *arguments: Any) -> types.CodeType:
    """A code object, if it was written by this version of Python: byte code of another crashes the interpreter."""
    _check_version(tag, "function")
    return types.CodeType(*arguments)


def _check_version(tag: str, what: str) -> None:
    _check(tag, str, "a version of Python")
    here = sys.implementation.cache_tag
    if tag != here:
        raise UnpicklingError(
            f"this pickle holds a {what} by value, which was written by Python {_readable(tag)} and cannot run under "
            f"Python {_readable(str(here))}: load it with the former, or put the {what} into a module so that "
            f"it goes by "
            "reference"
        )


def _readable(tag: str) -> str:
    name, _, digits = tag.partition("-")
    version = f"{digits[0]}.{digits[1:]}" if digits.isdigit() else digits
    return f"{version} ({name})" if name != "cpython" else version


def make_namespace(name: str | None, package: str | None) -> dict[str, Any]:
    """The globals of functions that came from one module, to be filled with those that they use."""
    return {"__name__": name, "__package__": package, "__builtins__": builtins}


def module_namespace(module: types.ModuleType) -> dict[str, Any]:
    """The dictionary of a module that was made on the fly: the globals of its functions."""
    _check(module, types.ModuleType, "a module")
    return module.__dict__


def make_cell() -> types.CellType:
    """An empty cell; :func:`fill_cell` or :func:`fill_function` puts the value in."""
    return types.CellType()


def fill_cell(cell: types.CellType, value: tuple[Any, ...]) -> None:
    """Put the value into a cell."""
    _check(cell, types.CellType, "a cell")
    if value:
        cell.cell_contents = value[0]


#: The attribute of what is made and not filled yet: a list of what waits until it is.
_UNFINISHED = "__safepickle_unfinished__"


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    closure: tuple[types.CellType, ...] | None,
    source: tuple[str, str, int] | None,
    owner: str | None = None,
) -> types.FunctionType:
    """A function with its code, an empty closure and no attributes; :func:`fill_function` brings the rest.

    Where the kernel of identity ``owner`` lives here, it is the function of that kernel.
    """
    _check(code, types.CodeType, "code")
    _check(namespace, dict, "a namespace")
    living = None if owner is None else static_vars(identities.object_of(owner)).get("fn")
    if type(living) is types.FunctionType:
        return living
    if source is not None:
        register_source(*source)
    made = types.FunctionType(code, namespace, name, None, closure)
    made.__dict__[_UNFINISHED] = []
    return made


def fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    """Give a function its globals, cell contents, defaults and attributes, unless it has them."""
    _check(function, types.FunctionType, "a function")
    waiting = function.__dict__.pop(_UNFINISHED, None)
    if waiting is None:
        return
    for name, value in state.pop("globals").items():
        function.__globals__.setdefault(name, value)
    for cell, value in state.pop("cells"):
        cell.cell_contents = value
    state.pop("modules", None)
    for name, value in state.pop("vars", {}).items():
        function.__dict__[name] = value
    for name, value in state.items():
        setattr(function, _FUNCTION_STATE[name], value)
    for finish in waiting:
        finish()


_FUNCTION_STATE = {
    name: f"__{name}__"
    for name in ("qualname", "module", "doc", "defaults", "kwdefaults", "annotations", "type_params")
}
