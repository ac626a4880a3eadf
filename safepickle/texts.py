"""Which text is this function's, and is it still?

``inspect`` answers from what the file says *now*: after an edit, a function that is still running gets another
function's lines. A text that travels with its function must be its own, or ``@triton.jit`` and AutoGraph would compile
something else. So the text is compiled again here, and believed where the result is the function's own code.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import os
import time
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from . import restore

__all__ = ["CodeCache", "source_of"]

T = TypeVar("T")

_FUTURE: Final = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
#: Files that were last changed before this moment cannot have changed since they were imported (or hardly so).
_STARTED: Final = time.time()
_INDEXES_KEPT: Final = 32


class CodeCache(Generic[T]):
    """What was found out about code objects, by identity: equal code may come from files with different texts."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[types.CodeType], T]] = {}

    def get(self, code: types.CodeType, make: Callable[[types.CodeType], T]) -> T:
        """The value for that code object; made if it is not known, and remembered if it is not ``None``."""
        entry = self._entries.get(id(code))
        if entry is not None and entry[0]() is code:
            return entry[1]
        value = make(code)
        if value is not None:
            key, entries = id(code), self._entries
            entries[key] = (weakref.ref(code, lambda ref, forget=_forget: forget(entries, key, ref)), value)
        return value


def _forget(entries: dict[int, Any], key: int, ref: Any) -> None:
    entry = entries.get(key)
    if entry is not None and entry[0] is ref:
        entries.pop(key, None)


_texts: CodeCache[tuple[str, int] | None] = CodeCache()


def source_of(function: types.FunctionType) -> tuple[str, int] | None:
    """The text of a function and the number of its first line.

    Returns:
        ``None`` where the text cannot be had, or where it is no longer the one that the function was made from.
    """
    return _texts.get(function.__code__, lambda code: _find(code, function.__globals__))


def _find(code: types.CodeType, module_globals: dict[str, Any]) -> tuple[str, int] | None:
    filename = code.co_filename
    known = restore.texts.get(filename)
    if known is not None:  # it came in a pickle together with its text
        text, first = known
        if code.co_firstlineno == first:
            return known
        return _block(text.splitlines(keepends=True), code.co_firstlineno - first, code.co_firstlineno)
    if filename == "<string>":  # the name of all that nobody gave a name
        return None
    try:
        linecache.checkcache(filename)
        lines = linecache.getlines(filename, module_globals)
    except Exception:  # a loader's `get_source` may raise anything
        return None
    found = _block(lines, code.co_firstlineno - 1, code.co_firstlineno)
    return found if found is not None and _is_text_of(code, lines) else None


def _block(lines: list[str], start: int, first: int) -> tuple[str, int] | None:
    if not 0 <= start < len(lines):
        return None
    try:
        text = "".join(inspect.getblock(lines[start:]))
    except Exception:  # a text that does not tokenize
        return None
    return (text, first) if text else None


# -- is it the text of this code? --------------------------------------------------------------------------------------


def _is_text_of(code: types.CodeType, lines: list[str]) -> bool:
    """Whether these lines compile to this code where it says that it begins."""
    fresh = _codes("".join(lines), code.co_flags & _FUTURE).get((code.co_firstlineno, code.co_name), [])
    if any(candidate == code for candidate in fresh):
        return True
    # An import hook may have rewritten it (pytest's assertions, type checkers, debuggers): then more is in
    # the code than in the text.
    return _is_unchanged(code.co_filename) and any(_covers(code, candidate) for candidate in fresh)


_indexes: dict[tuple[str, int], dict[tuple[int, str], list[types.CodeType]]] = {}


def _codes(text: str, flags: int) -> dict[tuple[int, str], list[types.CodeType]]:
    """All code objects of a file by first line and name."""
    key = (text, flags)
    index = _indexes.get(key)
    if index is None:
        index = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                todo = [compile(text, "<text>", "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            todo = []
        while todo:
            code = todo.pop()
            index.setdefault((code.co_firstlineno, code.co_name), []).append(code)
            todo.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        while len(_indexes) >= _INDEXES_KEPT:
            _indexes.pop(next(iter(_indexes)))
        _indexes[key] = index
    return index


def _is_unchanged(filename: str) -> bool:
    """Whether the file is as it was when this process began; what is only in ``linecache`` does not change."""
    try:
        return os.stat(filename).st_mtime < _STARTED
    except OSError:
        return True


def _covers(code: types.CodeType, candidate: types.CodeType) -> bool:
    """Whether the code has everything that the candidate has: arguments, names and constants."""
    count = code.co_argcount + code.co_kwonlyargcount
    constants = [value for value in candidate.co_consts if value is not None and not isinstance(value, types.CodeType)]
    return (
        code.co_varnames[:count] == candidate.co_varnames[:count]
        and set(candidate.co_names) <= set(code.co_names)
        and all(any(type(own) is type(value) and own == value for own in code.co_consts) for value in constants)
    )
