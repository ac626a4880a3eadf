"""Rules for compiled functions of all kinds: what kernels of different libraries have in common.

- ``jax.jit``, ``jax.custom_jvp``, ``jax.custom_vjp``: by the name that leads to this very object, else by value
- numba dispatchers and universal functions, cupy kernels: by name, else as the library does
- helion, tilelang and cuda.tile kernels: by name
- copies share them all

They take a function's place in its module, under its name or another one. They are code: what was compiled stays
behind, and is made again where it is missing. Triton's kernels have a module of their own.
"""

from __future__ import annotations

import types
from typing import Any, Final

from .. import restore
from ..digests import content_digest
from ..references import find, inner_function, static_vars, written_as_global
from ..registry import SHARE, Registry
from ..sources import home

__all__ = [
    "add_rules",
    "current_identity",
    "function_name",
    "reduce_by_name",
    "reduce_custom_derivative",
    "reduce_jax_jit",
]

ORIGIN = __name__

JAX_JIT: Final = ("jaxlib._jax:PjitFunction", "jaxlib.xla_extension:PjitFunction")
JAX_DERIVATIVES: Final = ("jax._src.custom_derivatives:custom_jvp", "jax._src.custom_derivatives:custom_vjp")

#: What ``jax.jit`` keeps of the options that it was given, under their names.
JAX_OPTIONS: Final = (
    "static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused", "inline", "device",
    "backend",
)  # fmt: skip


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    special = {**dict.fromkeys(JAX_JIT, reduce_jax_jit), **dict.fromkeys(JAX_DERIVATIVES, reduce_custom_derivative)}
    for name in restore.COMPILED:
        by_value = "by value" if name in special or name.startswith(("numba", "cupy")) else "an error"
        registry.add(
            name, special.get(name, reduce_by_name), copy=SHARE, subclasses=True, with_pickler=True, origin=ORIGIN,
            summary=(f"by name, else {by_value}", "shared"),
        )  # fmt: skip


def reduce_by_name(compiled: Any, pickler: Any) -> Any:
    """A compiled function by the name that leads to it, if one does."""
    reference = find(compiled)
    if reference is None:
        return NotImplemented
    if written_as_global(reference, compiled, pickler.protocol):
        return reference.qualname
    return restore.compiled, tuple(reference)


def function_name(obj: Any) -> str:
    """What errors and identities call a compiled function: the name of the Python function in it."""
    function = inner_function(obj)
    return (
        f"{home(function.__module__)}:{function.__qualname__}"
        if function is not None
        else f"of type {type(obj).__qualname__}"
    )


def current_identity(obj: Any, pickler: Any) -> str:
    """What makes two payloads one object: its name and a digest of all that it is made from, as that is now.

    It is made anew each time: where something that the object refers to has changed, another process needs another one.
    """
    name = function_name(obj)
    if pickler.canonical:
        return name
    content = f"{name}:{content_digest(obj, pickler.registry)[:24]}"
    known = restore.identities.identity_of(obj)
    if known is not None and (known == content or known.startswith(f"{content}-")):
        return known
    return restore.identities.remember(obj, content)


# -- jax ---------------------------------------------------------------------------------------------------------------


def reduce_jax_jit(compiled: Any, pickler: Any) -> Any:
    """A function under ``jax.jit`` by its name, else as its Python function and the options."""
    reduced = reduce_by_name(compiled, pickler)
    fields = static_vars(compiled)
    function, info = fields.get("_fun", fields.get("__wrapped__")), fields.get("_jit_info")
    if reduced is not NotImplemented or function is None or info is None:
        return reduced
    options = {name: value for name in JAX_OPTIONS if (value := getattr(info, name, None))}
    for name in ("in_shardings", "out_shardings"):
        leaves = getattr(info, f"{name}_leaves", ())
        if any(type(leaf).__name__ != "UnspecifiedValue" for leaf in leaves):
            options[name] = getattr(info, f"{name}_treedef").unflatten(leaves)
    compiler_options = getattr(info, "compiler_options_kvs", ())
    if compiler_options:
        options["compiler_options"] = dict(compiler_options)
    return restore.jax_jit, (current_identity(compiled, pickler), function, options)


def reduce_custom_derivative(compiled: Any, pickler: Any) -> Any:
    """A function with a derivative of its own by its name, else as its functions."""
    reduced = reduce_by_name(compiled, pickler)
    if reduced is not NotImplemented or type(compiled).__name__ not in ("custom_jvp", "custom_vjp"):
        return reduced
    state = dict(static_vars(compiled))
    if type(state.get("__wrapped__")) is types.FunctionType and state.get("__wrapped__") is state.get("fun"):
        for name in ("__annotations__", "__doc__"):  # the function has them
            state.pop(name, None)
    return (
        restore.jax_custom_derivative,
        (type(compiled).__name__,),
        state,
        None,
        None,
        restore.fill_jax_custom_derivative,
    )
