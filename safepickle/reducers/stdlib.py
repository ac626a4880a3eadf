"""Rules for Python itself and its standard library.

- functions, classes, methods and modules: by the name that leads to them, else by value with source
- code, cells, type variables: by value
- everything else by topic, a module each: :mod:`~safepickle.reducers.functions`, :mod:`~safepickle.reducers.locks`,
  :mod:`~safepickle.reducers.containers`, :mod:`~safepickle.reducers.weakrefs`, :mod:`~safepickle.reducers.contexts`,
  :mod:`~safepickle.reducers.files`, :mod:`~safepickle.reducers.loggings`, :mod:`~safepickle.reducers.exceptions`, and
  :mod:`~safepickle.reducers.refusals` for what cannot go
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from .. import classes, restore, sources
from ..registry import SHARE, Registry
from . import (
    closures,
    containers,
    contexts,
    exceptions,
    files,
    functions,
    locks,
    loggings,
    marked,
    refusals,
    stand_ins,
    weakrefs,
)
from .parts import ORIGIN

__all__ = ["add_rules"]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    add_code_rules(registry)
    for topic in (functions, locks, containers, weakrefs, contexts, files, loggings, exceptions, refusals):
        topic.add_rules(registry)
    stand_ins.add_rules(registry)


def add_code_rules(registry: Registry) -> None:
    """Functions, classes, modules and what they are made of."""
    by_name = "by name, else by value with source"
    registry.add(
        types.FunctionType,
        marked.reduce_function,
        copy=marked.copy_function,
        shallow=SHARE,
        with_pickler=True,
        origin=ORIGIN,
        summary=(by_name, "shared; rebuilt where its cells hold an object that is copied"),
        holding=True,
        named=True,
    )
    registry.add(
        type,
        classes.reduce_class,
        copy=SHARE,
        subclasses=True,
        with_pickler=True,
        named=True,
        origin=ORIGIN,
        summary=(by_name, "shared"),
    )
    registry.add(
        enum.Enum,
        classes.reduce_enum_member,
        copy=SHARE,
        subclasses=True,
        with_pickler=True,
        origin=ORIGIN,
        summary=("its class and its value, or its name", "shared"),
    )
    registry.add(
        types.MethodType,
        sources.reduce_method,
        copy=closures.copy_method,
        shallow=_copy_method_once,
        with_pickler=True,
        origin=ORIGIN,
        summary=("owner and name", "bound to the copy of its owner"),
    )
    registry.add(
        types.ModuleType,
        sources.reduce_module,
        copy=SHARE,
        subclasses=True,
        with_pickler=True,
        origin=ORIGIN,
        summary=("by name", "shared"),
    )
    registry.add(
        types.CodeType,
        sources.reduce_code,
        copy=SHARE,
        with_pickler=True,
        origin=ORIGIN,
        summary=("by value", "shared"),
    )
    registry.add(
        types.CellType,
        sources.reduce_cell,
        copy=closures.copy_cell,
        shallow=_copy_cell_once,
        with_pickler=True,
        origin=ORIGIN,
        summary=("by value", "by value"),
    )
    for kind in classes.iter_type_variable_kinds():
        registry.add(
            kind,
            classes.reduce_type_variable,
            copy=SHARE,
            with_pickler=True,
            origin=ORIGIN,
            summary=(by_name, "shared"),
        )
    registry.add(
        typing.NewType,
        classes.reduce_new_type,
        copy=SHARE,
        with_pickler=True,
        origin=ORIGIN,
        summary=(by_name, "shared"),
    )
    if hasattr(typing, "TypeAliasType"):
        registry.add(
            typing.TypeAliasType,
            classes.reduce_type_alias,
            copy=SHARE,
            with_pickler=True,
            origin=ORIGIN,
            summary=(by_name, "shared"),
        )
    for name in ("_FIELD", "MISSING", "_HAS_DEFAULT_FACTORY", "KW_ONLY"):
        marker = getattr(dataclasses, name, None)
        if marker is not None:
            registry.add(type(marker), reduce_marker, copy=SHARE, origin=ORIGIN)


def reduce_marker(marker: Any) -> Any:
    """A marker that is compared by identity."""
    for name in ("_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY", "MISSING", "KW_ONLY"):
        if getattr(dataclasses, name, None) is marker:
            return restore.sentinel, ("dataclasses", name)
    return NotImplemented


def _copy_cell_once(cell: types.CellType) -> types.CellType:
    try:
        return types.CellType(cell.cell_contents)
    except ValueError:
        return types.CellType()


def _copy_method_once(method: types.MethodType) -> Any:
    return types.MethodType(method.__func__, method.__self__)
