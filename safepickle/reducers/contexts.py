"""Rules for context variables and contexts.

- a variable: by the name that leads to it; one from a script or a function by its name and default, and loading it
  twice gives one variable. Values that were set in a context stay there
- a context: its variables that have names, with their values; its copy has them all
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Generator
from typing import Any, Final

from .. import restore
from ..references import Reference, find, leads_to, static_vars
from ..registry import SHARE, Registry
from .parts import ORIGIN, bare

__all__ = ["add_rules"]

_MAIN: Final = ("__main__", "__mp_main__")


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(contextvars.ContextVar, reduce_variable, copy=SHARE, with_pickler=True, origin=ORIGIN,
                 summary=("by name, else by its name and default", "shared"))  # fmt: skip
    registry.add(contextvars.Context, reduce_context, copy=copy_context, shallow=contextvars.Context.copy,
                 origin=ORIGIN, summary=("its variables that have names", "with copies of the values"))  # fmt: skip


#: Variables cannot be referred to weakly, and a search looks at all modules. They live for ever as a rule.
_found: dict[int, tuple[contextvars.ContextVar[Any], Reference]] = {}


def reference_to(variable: contextvars.ContextVar[Any]) -> Reference | None:
    """The name that leads to a variable, here and in a fresh process."""
    known = _found.get(id(variable))
    if known is not None and known[0] is variable and leads_to(known[1], variable):
        return known[1]
    reference = find(variable)
    if reference is not None:
        _found[id(variable)] = (variable, reference)
    return reference


def reduce_variable(variable: contextvars.ContextVar[Any], pickler: Any) -> tuple[Any, ...]:
    """The variable by its name, else by value with an identity."""
    reference = reference_to(variable)
    if reference is not None:
        return restore.context_variable, tuple(reference)
    default = _default_of(variable)
    identity = f"{_name_in_script(variable) or '?'}:{variable.name}"
    if not pickler.canonical:
        if default:
            from ..digests import content_digest

            identity = f"{identity}:{content_digest(default[0], pickler.registry)[:24]}"
        identity = restore.remember_context_variable(variable, identity)
    return restore.make_context_variable, (identity, variable.name, default)


def _name_in_script(variable: contextvars.ContextVar[Any]) -> str | None:
    for module in _MAIN:
        for name, value in list(static_vars(sys.modules.get(module)).items()):
            if value is variable:
                return f"__main__.{name}"
    return None


def _default_of(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    """The default in a tuple, empty where there is none: what a context shows that knows nothing."""
    try:
        return (contextvars.Context().run(variable.get),)
    except LookupError:
        return ()


def reduce_context(context: contextvars.Context) -> tuple[Any, ...]:
    """The values of variables that a name leads to; others could not be asked for them anyway."""
    named = [
        (v, value) for v, value in context.items() if reference_to(v) is not None or _name_in_script(v) is not None
    ]
    named.sort(key=lambda item: item[0].name)
    return bare(contextvars.Context, named, restore.fill_context)


def copy_context(context: contextvars.Context, memo: dict[Any, Any]) -> Generator[Any, Any, contextvars.Context]:
    """A context with the same variables, their values copied."""
    made = memo[id(context)] = context.copy()
    for variable, value in list(context.items()):
        copied = yield value
        if copied is not value:
            made.run(variable.set, copied)
    return made
