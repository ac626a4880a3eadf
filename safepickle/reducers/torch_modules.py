"""What do the state methods of ``torch.nn.Module`` do?

- ``__getstate__``: all attributes but what ``torch.compile`` has put there for this very module
- ``__setstate__``: the attributes; it adds what files of older versions lack
- ``__getattr__``: parameters, buffers and submodules

Some of torch's own modules (convolutions, attention, softmax) have a ``__setstate__`` that does this and adds one more.

Each is asked, with a module that is none: a version of torch that does anything else is copied by its methods.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final

import torch

from ..registry import Registry
from ..state_methods import Drops, Meaning, Searches, Updates, describe

__all__ = ["add_rules"]

_COMPILED: Final = "_compiled_call_impl"
_SEARCHED: Final = ("_parameters", "_buffers", "_modules")


def add_rules(registry: Registry) -> None:
    """Describe the methods of ``torch.nn.Module``."""
    for name in ("__getstate__", "__setstate__", "__getattr__"):
        method = vars(torch.nn.Module).get(name)
        if isinstance(method, types.FunctionType) and (meaning := find_meaning(name, method)) is not None:
            describe(method, meaning)
    for cls in {base for layer in vars(torch.nn).values() if isinstance(layer, type) for base in layer.__mro__}:
        method = vars(cls).get("__setstate__")
        if cls is torch.nn.Module or not issubclass(cls, torch.nn.Module) or not isinstance(method, types.FunctionType):
            continue
        more = find_more(cls, method) if cls.__module__.startswith("torch.nn.modules.") else None
        if more is not None:
            describe(method, more)


def find_meaning(name: str, method: types.FunctionType) -> Meaning | None:
    """What a method of that name does; ``None`` where it is not what it was when this was written."""
    ask: dict[str, Callable[[types.FunctionType], Meaning | None]] = {
        "__getstate__": dropped, "__setstate__": updated, "__getattr__": searched,
    }  # fmt: skip
    try:
        return ask[name](method)
    except Exception:
        return None


def _bare(**attributes: Any) -> Any:
    """A module that has these attributes only."""
    module = torch.nn.Module.__new__(torch.nn.Module)
    module.__dict__.update(attributes)
    return module


def dropped(method: types.FunctionType) -> Drops | None:
    """What ``__getstate__`` leaves out."""
    attributes = {"training": True, "one": 1, _COMPILED: None}
    if not set(method.__code__.co_names) <= {"__dict__", "copy", "pop"}:
        return None
    state = method(_bare(**attributes))
    if type(state) is not dict or state not in (attributes, {"training": True, "one": 1}):
        return None
    return Drops(tuple(attributes.keys() - state.keys()))


def updated(method: types.FunctionType) -> Updates | None:
    """What ``__setstate__`` adds where it is missing, and so what a state must have to be all there is."""
    module = _bare()
    method(module, {"one": 1})
    added = dict(vars(module))
    if added.pop("one", None) != 1:
        return None
    complete = _bare()
    state = {**added, "one": 2}
    method(complete, dict(state))
    known = {"__dict__", "update", "OrderedDict", "collections", "set", "dict", *added}
    if vars(complete) != state or not set(method.__code__.co_names) <= known:
        return None
    return Updates(tuple(added))


def find_more(cls: type, method: types.FunctionType) -> Updates | None:
    """What a ``__setstate__`` of a layer adds to that of ``Module``; ``None`` where it does anything else."""
    try:
        return updated_more(cls, method)
    except Exception:
        return None


def updated_more(cls: Any, method: types.FunctionType) -> Updates | None:
    """As :func:`updated`, for a method that calls that of ``Module``."""
    made = [cls.__new__(cls), cls.__new__(cls)]
    method(made[0], {"one": 1})
    added = dict(vars(made[0]))
    if added.pop("one", None) != 1:
        return None
    state = {**added, "one": 2}
    method(made[1], dict(state))
    code = method.__code__
    known = {"super", "__setstate__", "hasattr", "F", "relu", *added}
    texts = {text for text in code.co_consts if isinstance(text, str)} - {method.__doc__}
    if vars(made[1]) != state or not set(code.co_names) <= known or not texts <= {*added, "zeros"}:
        return None
    return Updates(tuple(added))


def searched(method: types.FunctionType) -> Searches | None:
    """Where ``__getattr__`` looks."""
    known = {"__dict__", "AttributeError", "type", "__name__", *_SEARCHED}
    if not set(method.__code__.co_names) <= known:
        return None
    for name in _SEARCHED:
        if method(_bare(**{name: {"one": 1}}), "one") != 1:
            return None
    return Searches(_SEARCHED)
