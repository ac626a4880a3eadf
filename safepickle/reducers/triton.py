"""Rules for Triton: a kernel is code.

- kernels of any kind and in any stack: by the name that leads to this very object, else by value with source; copies
  share them
- launchers (``kernel[grid]``) and bound methods (``kernel.run``): as kernel and grid, as kernel and name
- ``triton.Config`` and ``tl.constexpr``: as their values

By value a kernel is made again by its constructor, from its function, text and options. What it has compiled, tuned or
measured stays behind, and so do hooks that somebody added to it (``add_pre_run_hook``). It is never hashed nor asked
for its ``cache_key`` here: that would freeze the globals that it saw.

Written for Triton 2.1 to 3.9: everything that changed in between is asked for, not assumed.
"""

from __future__ import annotations

import re
import symtable
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Final

from .. import restore, sources
from ..errors import PicklingError
from ..references import find, inner_function, static_vars, written_as_global
from ..registry import Registry, Share
from .kernels import current_identity, function_name

__all__ = [
    "add_rules",
    "is_emptied",
    "reduce_config",
    "reduce_constexpr",
    "reduce_kernel",
    "reduce_launcher",
    "reduce_method",
]

ORIGIN = __name__

#: The classes that by value are made again, and what a pickle calls them. ``triton.jit`` chooses between the first two.
KINDS: Final = {
    ("triton.runtime.jit", "JITFunction"): "jit",
    ("triton.runtime.interpreter", "InterpretedFunction"): "jit",
    ("triton.experimental.gluon._runtime", "GluonJITFunction"): "gluon",
    ("triton.runtime.jit", "ConstexprFunction"): "constexpr",
    ("triton.runtime.autotuner", "Autotuner"): "autotuner",
    ("triton.runtime.autotuner", "Heuristics"): "heuristics",
}

#: Options of ``triton.jit`` that a kernel keeps under their own names.
JIT_OPTIONS: Final = (
    "version",
    "do_not_specialize",
    "do_not_specialize_on_alignment",
    "debug",
    "noinline",
    "launch_metadata",
)


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    summary = ("by name, else by value with source", "shared")
    for name in (
        "triton.runtime.jit:KernelInterface",
        "triton.runtime.jit:JITCallable",
        "triton.runtime.interpreter:InterpretedFunction",  # until Triton 3.4 no KernelInterface
    ):
        registry.add(
            name, reduce_kernel, copy=Share(unless=is_emptied), subclasses=True, with_pickler=True,
            methods=reduce_method, only=_is_kernel_class,
            origin=ORIGIN, summary=summary,
        )  # fmt: skip
    registry.add("triton.runtime.autotuner:Config", reduce_config, origin=ORIGIN, summary=("its values", "its values"))
    registry.add("triton.language.core:constexpr", reduce_constexpr, origin=ORIGIN, summary=("its value", "its value"))
    launchers = "triton.runtime.jit:KernelInterface.__getitem__.<locals>.<lambda>"
    registry.add_function(launchers, reduce_launcher, origin=ORIGIN, summary=("its kernel and grid", "shared"))
    # Until Triton 3.4 an attribute of the instance.
    run = "triton.runtime.interpreter:InterpretedFunction.__init__.<locals>.run"
    registry.add_function(run, reduce_local_run, origin=ORIGIN)


def is_emptied(kernel: Any) -> bool:
    """Whether the owner of a kernel took out its function, to pickle or copy what is left as any object.

    torch's Inductor does (``CachingAutotuner.prepare_for_pickle``).
    """
    return static_vars(kernel).get("fn", kernel) is None


def _is_kernel_class(cls: type) -> bool:
    return cls.__name__ != "BoundConstexprFunction"  # made for each access; its parts go as any object's


# -- by reference ------------------------------------------------------------------------------------------------------


def reduce_kernel(kernel: Any, pickler: Any) -> Any:
    """A kernel by its name, else by value.

    Raises:
        PicklingError: no name leads to it, and its class is another library's.
    """
    fields = static_vars(kernel)
    if is_emptied(kernel):
        return NotImplemented
    reference = find(kernel)
    if reference is None:
        return reduce_by_value(kernel, fields, pickler)
    if pickler is not None and pickler.pin is not None:
        return restore.pinned_kernel, (*reference, restore.source_digest(kernel), pickler.pin)
    if written_as_global(reference, kernel, pickler.protocol):
        return reference.qualname
    return restore.kernel, tuple(reference)


def reduce_method(method: Any) -> Any:
    """A method bound to a kernel, as kernel and name."""
    name = getattr(method.__func__, "__name__", None)
    if not isinstance(name, str) or static_vars(method.__self__).get("fn") is None:
        return NotImplemented
    if getattr(method.__self__, name, None) != method:
        return NotImplemented
    return restore.kernel_method, (method.__self__, name)


def reduce_local_run(function: types.FunctionType) -> Any:
    """``kernel.run`` where it is a function made by the constructor."""
    kernel = _cells(function).get("self")
    return NotImplemented if kernel is None else (restore.kernel_method, (kernel, "run"))


def reduce_launcher(function: types.FunctionType) -> Any:
    """``kernel[grid]``, as kernel and grid."""
    cells = _cells(function)
    if cells.keys() != {"self", "grid"}:
        return NotImplemented
    return restore.launcher, (cells["self"], cells["grid"])


def _cells(function: types.FunctionType) -> dict[str, Any]:
    cells = function.__closure__ or ()
    try:
        return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
    except ValueError:  # a cell that is still empty
        return {}


# -- by value ----------------------------------------------------------------------------------------------------------


def reduce_by_value(kernel: Any, fields: dict[str, Any], pickler: Any) -> Any:
    """The class, as one of a few kinds, and what its constructor needs."""
    cls = type(kernel)
    kind = KINDS.get((cls.__module__, cls.__qualname__))
    if kind is None and inner_function(kernel) is None:
        return NotImplemented  # nothing that Triton made is in it
    if kind is None:
        raise PicklingError(
            f"cannot pickle the kernel {function_name(kernel)}: no importable name leads to it, and only its own "
            f"library can rebuild a {cls.__module__}.{cls.__qualname__}. Keep it under a name in a module, or register "
            "a reducer for that class"
        )
    identity = current_identity(kernel, pickler)
    state: dict[str, Any] = {"identity": identity, "fn": fields["fn"], **dict(_WRITERS[kind](kernel, fields))}
    if "source" in state:
        pickler.by_value.texts[id(fields["fn"])] = (
            fields["fn"],
            *state["source"],
            None if pickler.canonical else identity,
        )
    return restore.make_kernel, (identity, kind), state, None, None, restore.fill_kernel


def _jit_state(kernel: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "options", dict(_jit_options(kernel, fields))
    yield from _text_state(kernel, fields)


def _constexpr_state(kernel: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "options", {}
    yield from _text_state(kernel, fields)


def _heuristics_state(kernel: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "arg_names", fields["arg_names"]
    yield "values", fields["values"]


def _jit_options(kernel: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options of ``triton.jit`` that somebody gave."""
    interpreted = fields.get(
        "kwargs", static_vars(fields.get("rewriter")).get("kwargs")
    )  # InterpretedFunction, from 3.2 on
    for name in JIT_OPTIONS:
        value = fields.get(name) if interpreted is None else interpreted.get(name)
        if value is not None and not (isinstance(value, (list, tuple, set)) and not value):
            yield name, value
    shown = _own_repr(fields) if interpreted is None else interpreted.get("repr")
    if shown is not None:
        yield "repr", shown


def _own_repr(fields: dict[str, Any]) -> Any:
    """The ``repr`` that somebody gave; until Triton 3.2 it is wrapped in a lambda."""
    if "_repr" in fields:
        return fields["_repr"]
    shown = fields.get("repr")
    return _cells(shown).get("repr") if shown is not None and _is_made_by(shown, "JITFunction.__init__") else shown


def _is_made_by(value: Any, constructor: str) -> bool:
    return isinstance(value, types.FunctionType) and value.__qualname__.startswith(f"{constructor}.<locals>.")


# -- text --------------------------------------------------------------------------------------------------------------


def _text_state(kernel: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The text that the kernel was made from, as far as the constructor will not find it, and the globals it needs."""
    function = fields["fn"]
    text = fields.get("_src", fields.get("src"))
    source = _source(function, fields)
    line = function.__code__.co_firstlineno
    if sources.function_reference(function) is None:
        if source is not None:
            yield "source", (source, line)
        hidden = {
            name: function.__globals__[name] for name in _hidden_names(function, text) if name in function.__globals__
        }
        if hidden:
            yield "globals", hidden
        if fields.get("starting_line_number", line) != line:
            yield "line", fields["starting_line_number"]
    if text is not None and (source is None or text != _without_decorators(source)):
        yield "src", text
    names = {name: fields[name] for name in ("__name__", "__qualname__", "__module__") if name in fields}
    changed = {name: value for name, value in names.items() if value != getattr(function, name)}
    if changed:  # somebody gave the kernel another name
        yield "names", changed


def _source(function: types.FunctionType, fields: dict[str, Any]) -> str | None:
    """The text of the function as Triton read it, decorators included."""
    raw = fields.get("raw_src")  # from Triton 3.6 on
    if raw is not None:
        return "".join(raw)
    found = sources.source_of(function)
    if found is not None:
        return found[0]
    kept = fields.get("src")
    return kept if isinstance(kept, str) else None


def _without_decorators(source: str) -> str | None:
    """What the constructor keeps of a text."""
    dedented = textwrap.dedent(source)
    match = re.search(r"^def\s+\w+\s*\(", dedented, re.MULTILINE)
    return dedented[match.start() :] if match else None


def _hidden_names(function: types.FunctionType, text: str | None) -> list[str]:
    """Globals that only the text mentions: in annotations and defaults, or because the text is not that of the code."""
    if text is None:
        return []
    try:
        table = symtable.symtable(text, "<kernel>", "exec")
    except (SyntaxError, ValueError):
        return []
    known = {*sources.global_names(function.__code__), *function.__code__.co_freevars, function.__name__}
    return sorted(set(_global_symbols(table)) - known)


def _global_symbols(table: symtable.SymbolTable) -> Iterator[str]:
    at_top = table.get_type() == "module"
    yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (at_top or s.is_global()))
    for child in table.get_children():
        yield from _global_symbols(child)


# -- tuners ------------------------------------------------------------------------------------------------------------


def _autotuner_state(kernel: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    names = fields["arg_names"]
    yield "arg_names", names
    yield "configs", fields["configs"]
    # Until Triton 3.0 the tuner keeps positions.
    yield "key", fields["keys"] if "keys" in fields else [names[i] for i in fields["key_idx"]]
    for name, positions in (("reset_to_zero", "reset_idx"), ("restore_value", "restore_idx")):
        value = fields[name] if name in fields else [names[i] for i in fields.get(positions, ())]
        yield name, value or None
    yield "options", dict(_tuner_options(fields))


def _tuner_options(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What somebody gave; what the constructor made itself closes over the tuner and is made again."""
    for name in ("pre_hook", "post_hook"):
        hook = fields.get(name)
        if fields.get(f"user_defined_{name}", not _is_made_by(hook, "Autotuner.__init__")) and hook is not None:
            yield name, hook
    pruning = {"perf_model": fields.get("perf_model"), "early_config_prune": fields.get("early_config_prune")}
    if any(value is not None for value in pruning.values()):
        yield "prune_configs_by", {**pruning, "top_k": fields.get("configs_top_k", 1.0)}
    for name, field in (("warmup", "num_warmups"), ("rep", "num_reps")):
        if fields.get(field) is not None:
            yield name, fields[field]
    for name in ("use_cuda_graph", "cache_results"):
        if fields.get(name):
            yield name, True
    bench = fields.get("_do_bench") if "_do_bench" in fields else fields.get("do_bench")
    if bench is not None and not _is_made_by(bench, "Autotuner.__init__") and not _is_default_bench(bench):
        yield "do_bench", bench


def _is_default_bench(bench: Any) -> bool:
    """Triton 3.2 keeps what the driver gave it in the place of what nobody gave."""
    return bench is getattr(sys.modules.get("triton.testing"), "do_bench", None)


_WRITERS: Final = {
    "jit": _jit_state,
    "gluon": _jit_state,
    "constexpr": _constexpr_state,
    "heuristics": _heuristics_state,
    "autotuner": _autotuner_state,
}


def reduce_config(config: Any) -> tuple[Any, ...]:
    """A configuration as its values, on top of what the version that loads it has by default."""
    return restore.make_config, (), dict(static_vars(config)), None, None, restore.fill_config


def reduce_constexpr(constant: Any) -> tuple[Any, ...]:
    """A constant as its value: the type beside it is not the same in each version."""
    return restore.constexpr, (static_vars(constant)["value"],)
