"""Why can a pickle not be loaded, and what would be needed?

After a failure the pickle is read a second time without running it, up to the operation that failed. For names that are
not there the nearest ones that are get looked up.
"""

from __future__ import annotations

import difflib
import io
import os
import pickle
import pkgutil
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from .errors import _described, _said, combined, with_note
from .streams import Call, Global, Made, Malformed, Operation, OutOfTime, operations

__all__ = ["suggestions", "translate_unpickling_error"]

_RESTORE: Final = "safepickle.restore"


class Stop(NamedTuple):
    """Where loading ended.

    Attributes:
        offset: the first byte of the operation, counted from the start of the pickle; ``None`` where it is not known.
        opcode: its name.
        name: the name that it asks for, or that it calls.
        missing: whether that name is not there.
        alike: how many more operations do the same, any of which may be meant.
        problem: what is wrong with the bytes.
    """

    offset: int | None
    opcode: str | None
    name: Global | None = None
    missing: bool = False
    alike: int = 0
    problem: str | None = None


def translate_unpickling_error(
    error: Exception, file: Any, start: int | None, *, fix_imports: bool = True, own_find_class: bool = False
) -> Exception:
    """The error to raise for a failed load, its cause set: as the original, saying where it ended and what is missing.

    Args:
        error: what the unpickler raised.
        file: the bytes, or the file that they were read from.
        start: where the pickle begins in the file; ``None`` where it cannot be read again.
        fix_imports: as for the load.
        own_find_class: names are resolved by somebody else's ``find_class``.

    Returns:
        A new error, or the original one where there is nothing to say about it (the end of the file, no memory).
    """
    if isinstance(error, MemoryError):
        return error
    try:
        if start is not None:
            with _Reread(file, start) as pickled:
                if pickled.is_empty():
                    return error
                stop = _find_stop(error, pickled, fix_imports, own_find_class)
                hint = _hint(error, stop, pickled)
        else:
            stop = _stop_by_text(error)
            hint = _hint(error, stop, None)
        if stop is None and hint is None:
            return error
        message = _message(error, stop, hint)
        made = combined(pickle.UnpicklingError, error, message)
        if made is None:
            return with_note(error, message)
        details = {} if stop is None else {"offset": stop.offset, "opcode": stop.opcode}
        _described(made, reason=_said(error), hint=hint, **details)
    except Exception:  # whatever goes wrong here must not hide what went wrong first
        return error
    made.__cause__ = error
    return made


class _Reread:
    """The bytes of the pickle once more; afterwards the file stands where it stood."""

    def __init__(self, source: Any, start: int) -> None:
        self.file = source if hasattr(source, "read") else io.BytesIO(source)
        self._start = start
        self._before = self.file.tell()

    def __enter__(self) -> _Reread:  # noqa: PYI034
        self.rewind()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.seek(self._before)

    def rewind(self) -> None:
        self.file.seek(self._start)

    def head(self, count: int) -> bytes:
        self.rewind()
        return bytes(self.file.read(count))

    def is_empty(self) -> bool:
        return not self.head(1)

    def size(self) -> int:
        return int(self.file.seek(0, os.SEEK_END)) - self._start

    def operations(self) -> Iterator[Operation]:
        self.rewind()
        return operations(self.file)


def _message(error: Exception, stop: Stop | None, hint: str | None) -> str:
    what, lines = "the pickle", [f"reason: {_said(error)}"]
    if stop is not None and stop.name is not None:
        name = repr(_dotted(stop.name))
        what = (
            name if stop.missing else f"the pickle: {'filling' if stop.opcode == 'BUILD' else 'calling'} {name} failed"
        )
    place = ""
    if stop is not None and stop.offset is not None:
        place = f" at byte {stop.offset}" + (f" (opcode {stop.opcode})" if stop.opcode else "")
        if stop.alike:
            place += (
                f", or at one of the {stop.alike} like it that follow"
                if stop.alike > 1
                else ", or at the next one like it"
            )
    if hint is not None:
        lines.append(f"hint: {hint}")
    return "\n  ".join([f"cannot load {what}{place}", *lines])


def _dotted(name: Global) -> str:
    return ".".join(part for part in (name.module if name.module != "builtins" else "", name.name) if part)


# -- where it ended ----------------------------------------------------------------------------------------------------


def _find_stop(error: Exception, pickled: _Reread, fix_imports: bool, own_find_class: bool) -> Stop | None:
    code = _called_code(error)
    # A missing name is found out by the unpickler itself, or by an import that it began, or by a function of ours.
    names = isinstance(error, (ImportError, AttributeError)) and (code is None or code.co_name == "<module>")
    called: Stop | None = None
    try:
        for operation in pickled.operations():
            found = _missing_in(operation, error, names, fix_imports, own_find_class)
            if found is not None:
                return Stop(operation.offset, operation.opcode, found, missing=True)
            if "persistent_load" in str(error) and operation.opcode in ("PERSID", "BINPERSID"):
                return Stop(operation.offset, operation.opcode)
            if code is not None and isinstance(operation.effect, Call) and code in _codes_of(operation):
                if called is None:
                    called = Stop(operation.offset, operation.opcode, _callee(operation.effect.callee))
                else:
                    called = called._replace(alike=called.alike + 1)
    except Malformed as problem:
        if code is None and isinstance(error, _OF_THE_STREAM):
            return Stop(problem.offset, problem.opcode, problem=str(problem))
    except OutOfTime:
        pass
    return called


#: What the unpickler raises about bytes.
_OF_THE_STREAM: Final = (pickle.UnpicklingError, EOFError, ValueError, LookupError, OverflowError)


def _missing_in(
    operation: Operation, error: Exception, names: bool, fix_imports: bool, own_find_class: bool
) -> Global | None:
    """The name that an operation asks for, if it is the one that is missing."""
    effect = operation.effect
    if isinstance(effect, Call):
        wanted = _reference_in(effect)
        return wanted if wanted is not None and str(wanted.module) in str(error) and not _is_there(wanted) else None
    if not isinstance(effect, Global):
        return None
    if own_find_class:
        return effect if effect.name in str(error) and effect.module in str(error) else None
    resolved = _mapped(effect) if fix_imports and operation.protocol < 3 else effect
    return resolved if names and not _is_there(resolved) else None


def _is_there(name: Global) -> bool:
    """Whether a name leads somewhere, as far as is imported by now."""
    found: Any = sys.modules.get(name.module)
    if found is None:
        return False
    for part in name.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            return False
    return True


def _mapped(name: Global) -> Global:
    """A name of Python 2 as Python 3 says it."""
    import _compat_pickle

    mapped = _compat_pickle.NAME_MAPPING.get((name.module, name.name))
    if mapped is not None:
        return Global(*mapped)
    return Global(_compat_pickle.IMPORT_MAPPING.get(name.module, name.module), name.name)


def _reference_in(call: Call) -> Global | None:
    """The name that a function of ours is asked to resolve."""
    callee, arguments = call
    if (
        not isinstance(callee, Global)
        or callee.module != _RESTORE
        or not isinstance(arguments, tuple)
        or len(arguments) < 2
    ):
        return None
    module, name = arguments[:2]
    if not isinstance(module, str) or not isinstance(name, str) or not all(map(str.isidentifier, module.split("."))):
        return None
    path = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], tuple) else ()
    return Global(module, ".".join([name, *[part for part in path if isinstance(part, str)]]))


def _callee(callee: Any) -> Global | None:
    while isinstance(callee, Made):
        callee = callee.callee
    return callee if isinstance(callee, Global) else None


def _called_code(error: Exception) -> types.CodeType | None:
    """The code of the function that was called from the pickle: what the stack shows right below the unpickler."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") != "safepickle.unpickler":
            return traceback.tb_frame.f_code
        traceback = traceback.tb_next
    return None


def _codes_of(operation: Operation) -> set[types.CodeType]:
    """The code that the call of an operation runs."""
    name = _callee(operation.effect.callee)
    if name is None or not _is_there(name):
        return set()
    found: Any = sys.modules[name.module]
    for part in name.name.split("."):
        found = getattr(found, part)
    candidates: list[Any] = [found] if operation.opcode != "BUILD" else []
    if isinstance(found, type):
        methods = {"BUILD": ("__setstate__",), "NEWOBJ": ("__new__",), "NEWOBJ_EX": ("__new__",)}
        candidates = [getattr(found, method, None) for method in methods.get(operation.opcode, ("__new__", "__init__"))]
    codes = [getattr(candidate, "__code__", None) for candidate in candidates]
    return {code for code in codes if isinstance(code, types.CodeType)}


def _stop_by_text(error: Exception) -> Stop | None:
    """What the error itself says about a missing name, where the bytes cannot be read again."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return Stop(None, None, Global(error.name, ""), missing=True)
    found = re.search(r"Can't get attribute '([\w.]+)' on <module '([\w.]+)'", str(error))
    return None if found is None else Stop(None, None, Global(found[2], found[1]), missing=True)


# -- what to do --------------------------------------------------------------------------------------------------------


def _hint(error: Exception, stop: Stop | None, pickled: _Reread | None) -> str | None:
    if stop is not None and stop.missing and stop.name is not None:
        return None if _is_there(stop.name) else _hint_for_name(stop.name)  # there: a find_class has refused it
    if isinstance(error, UnicodeDecodeError):
        return "text of Python 2: load with encoding='latin1' (NumPy arrays, datetime) or encoding='bytes'"
    if "persistent_load" in str(error):
        return "it refers to objects outside of it: define persistent_load in a subclass of Unpickler (torch.load does)"
    if pickled is None or stop is None or stop.problem is None:
        return None
    if stop.offset is not None and stop.offset < 2:
        head = pickled.head(64)
        for magic, what in _MAGIC.items():
            if head.startswith(magic):
                return f"this is no pickle but {what}"
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error):
        return f"the pickle is cut off: there are {pickled.size():,} bytes of it"
    return None


_MAGIC: Final = {
    b"\x1f\x8b": "a gzip file: open it with gzip.open",
    b"PK\x03\x04": "a zip file: torch.load reads those that torch.save wrote",
    b"BZh": "a bz2 file: open it with bz2.open",
    b"\xfd7zXZ": "an xz file: open it with lzma.open",
    b"\x28\xb5\x2f\xfd": "a zstandard file",
    b"\x93NUMPY": "a NumPy file: numpy.load reads it",
    b"\x89HDF": "an HDF5 file: h5py reads it",
    b"version https://git-lfs": "a pointer of Git LFS: fetch the file itself with git lfs pull",
    b"<": "a page of HTML or XML, perhaps a download that failed",
    b"{": "text, perhaps JSON",
}


def _hint_for_name(name: Global) -> str | None:
    if name.module in ("__main__", "__mp_main__"):
        leaf = name.name.partition(".")[0]
        where = "was defined in the script that wrote the pickle"
        return f"{leaf!r} {where}: define it here before loading, or move it to a module"
    found = suggestions(name.module, name.name)
    if not found:
        return "install or import what defines it, or map the name in Unpickler.find_class"
    return f"did you mean {' or '.join(repr(one) for one in found)}? Unpickler.find_class can map the old name"


def suggestions(module: str, name: str, most: int = 2) -> list[str]:
    """The nearest names that exist: a misspelt one, or the same one in another module. Imports nothing.

    Args:
        module: the module that was asked for.
        name: the qualified name in it.
        most: how many to return.

    Returns:
        Dotted names, the nearest first.
    """
    found: dict[str, None] = {}
    loaded = sys.modules.get(module)
    if loaded is not None:
        found.update(dict.fromkeys(_near_names(loaded, module, name)))
    found.update(dict.fromkeys(_moved(module, name)))
    if loaded is None:
        found.update(dict.fromkeys(_dotted(Global(near, name)) for near in _near_modules(module)))
    return list(found)[:most]


def _near_names(holder: Any, prefix: str, name: str) -> Iterator[str]:
    """Where the first part of a dotted name is missing: names like it."""
    first, _, rest = name.partition(".")
    inner = getattr(holder, first, None)
    if rest and inner is not None:
        yield from _near_names(inner, f"{prefix}.{first}", rest)
        return
    for near in _close(first, vars(holder) if hasattr(holder, "__dict__") else ()):
        yield ".".join([prefix, near, *([rest] if rest else [])])


def _moved(module: str, name: str) -> list[str]:
    """Loaded modules that define something of that very name, those of the same package first."""
    first = name.partition(".")[0]
    found: list[str] = []
    if not first:
        return found
    for other, loaded in list(sys.modules.items()):
        value = vars(loaded).get(first) if type(loaded) is types.ModuleType else None
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == other != module:
            found.append(other)
    package, leaf = module.partition(".")[0], module.rpartition(".")[2]
    near = [other for other in found if other.partition(".")[0] == package or other.rpartition(".")[2] == leaf]
    chosen = near or (found if len(found) <= 2 else [])
    ratio = {other: difflib.SequenceMatcher(None, module, other).ratio() for other in chosen}
    return [f"{other}.{name}" for other in sorted(chosen, key=lambda other: (-ratio[other], other))]


def _near_modules(module: str) -> Iterator[str]:
    """Modules that exist and are called much like the part that is missing."""
    parent, _, leaf = module.rpartition(".")
    if parent and parent not in sys.modules:
        for near in _near_modules(parent):
            yield f"{near}.{leaf}"
        return
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and path is None:
        return
    names = {info.name for info in pkgutil.iter_modules(path)}
    for near in _close(leaf, names):
        yield f"{parent}.{near}" if parent else near


def _close(word: str, words: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(word, [one for one in words if isinstance(one, str)], n=1, cutoff=0.7)
