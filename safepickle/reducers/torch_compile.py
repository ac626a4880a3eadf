"""Rules for what ``torch.compile`` and its siblings make of functions and modules.

A compiled function or module travels as a recipe: what was compiled, and the options. Graphs, guards and caches stay
behind; the first call of what comes back compiles. A compiled bound method is bound to the restored or copied object.

- ``torch.compile(f)``, ``torch.compile(module)``, ``m.compile()``, ``m.forward = torch.compile(m.forward)``
- ``torch.compiler.disable``, ``torch._dynamo.disable`` (recursive or not), ``torch._dynamo.run``
- modules with hooks: hooks that are registered later get other numbers
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections.abc import Generator
from typing import Any, Final

import torch

from .. import restore, sources
from ..references import Reference, find, static_vars
from ..registry import SHARE, Registry
from .closures import entangled
from .marked import MARKS

__all__ = ["add_rules", "cell_value"]

ORIGIN = __name__
BY_RECIPE: Final = "what was compiled and the options; compiled on first use"

#: What torch puts on a compiled function besides its marks: made again when it is compiled again.
_MADE_BY_TORCH: Final = frozenset(
    {"__wrapped__", "get_compiler_config", "aot_compile", "_is_torch_compile", "_isolate_recompiles_id"}
)
#: The same for the attributes of an ``OptimizedModule``.
_MADE_FOR_MODULE: Final = frozenset(
    {
        "_super_module_initialized", "_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "dynamo_ctx",
        "forward", "_forward", "training", "get_compiler_config",
    }
)  # fmt: skip
_MARK: Final = "_torchdynamo_"
_HOOKS: Final = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(
        MARKS[_MARK + "orig_callable"], reduce_compiled, copy=copy_compiled, shallow=SHARE, with_pickler=True,
        origin=ORIGIN,
        summary=(f"by name, else by recipe: {BY_RECIPE}", "shared; the same recipe on the copy where it is bound"),
    )  # fmt: skip
    registry.add("torch._dynamo.eval_frame:OptimizedModule", reduce_optimized, copy=copy_optimized, origin=ORIGIN,
                 summary=(f"by recipe: {BY_RECIPE}", "the same recipe on the copy"))  # fmt: skip
    for name in ("OptimizeContext", "DisableContext", "RunOnlyContext"):
        registry.add(f"torch._dynamo.eval_frame:{name}", reduce_context, copy=SHARE, origin=ORIGIN,
                     summary=("its options", "shared"))  # fmt: skip
    registry.add_made_classes(
        contextlib.ContextDecorator, is_config_patch, reduce_config_patch, copy=SHARE, origin=ORIGIN,
        summary=("the settings that it changes", "shared"),
    )  # fmt: skip
    registry.add(
        torch.nn.Module, reduce_module, shallow=_as_torch_does, subclasses=True, with_pickler=True, origin=ORIGIN,
        summary=("its attributes; a compiled call by recipe, hooks by value", "the same, bound to the copy"),
        concerns=("_compiled_call_impl", *_HOOKS),
    )  # fmt: skip


def _as_torch_does(module: Any) -> Any:
    return NotImplemented


# -- reading a recipe off what torch made ------------------------------------------------------------------------------


def cell_value(function: Any, name: str) -> Any:
    """What a function has in a cell; ``None`` if it has no such cell."""
    names = function.__code__.co_freevars
    if name not in names:
        return None
    try:
        return function.__closure__[names.index(name)].cell_contents
    except ValueError:
        return None


def _home(function: Any) -> str:
    name = function.__globals__.get("__name__")
    return name if isinstance(name, str) else ""


def _is_extra_frame(function: Any) -> bool:
    """Whether torch put this function around one that it cannot compile itself: a method of ``torch.nn``, an object."""
    return (
        type(function) is types.FunctionType
        and function.__code__.co_name == "inner"
        and _home(function) == "torch._dynamo.external_utils"
    )


def _target(marked: Any) -> Any:
    """What was compiled."""
    target = static_vars(marked)[_MARK + "orig_callable"]
    while _is_extra_frame(target):
        inner = cell_value(target, "fn")
        if inner is None:
            break
        target = inner
    return target


def _function_recipe(function: types.FunctionType) -> tuple[Any, dict[str, Any]] | None:
    """How to compile again; ``None`` where the marks are not the function's own.

    (``functools.wraps`` copies them to the functions that wrap a compiled one.)
    """
    if not _home(function).startswith("torch._dynamo.") or _is_extra_frame(function):
        return None
    if function.__code__.co_name == "nonrecursive_disable_wrapper":
        return restore.torch_disable, _given(recursive=False, reason=function.__dict__.get(_MARK + "disable_msg"))
    context = cell_value(function, "self")
    return None if context is None else _recipe(context)


def _recipe(context: Any) -> tuple[Any, dict[str, Any]]:
    """The function of :mod:`safepickle.restore` that compiles again, and the options to pass."""
    kind = type(context).__name__
    if kind == "RunOnlyContext":
        return restore.torch_run_compiled, {}
    if kind == "DisableContext":
        wrapping = None if getattr(context, "wrapping", True) else False
        return restore.torch_disable, _given(reason=getattr(context, "msg", None), wrapping=wrapping)
    return restore.torch_compile, _compile_options(context)


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not ``None``, the default of all that are used here."""
    return {name: value for name, value in options.items() if value is not None}


def _compile_options(context: Any) -> dict[str, Any]:
    """The arguments of ``torch.compile`` that lead to such a context."""
    chain = [context.callback]
    while (inner := getattr(chain[-1], _MARK + "orig_backend", None)) is not None:
        chain.append(inner)
    limits = [limit for part in chain if (limit := static_vars(part).get("_recompile_limit")) is not None]
    options = {
        **_backend_options(chain[-1]),
        **_given(
            fullgraph=_is_fullgraph(context, chain) or None,
            dynamic=getattr(context, "_dynamic", getattr(context, "dynamic", None)),
            recompile_limit=limits[0] if limits else None,
            isolate_recompiles=getattr(context, "_isolate_recompiles_id", -1) >= 0 or None,
            shapes_spec=getattr(context, "_shapes_spec", None),
        ),
    }
    guard_filter = getattr(getattr(context, "_hooks", None), "guard_filter_fn", None)
    if guard_filter is not None:
        options.pop("mode", None)  # torch takes either; with a filter it got options
        options["options"] = {**options.get("options", {}), "guard_filter_fn": guard_filter}
    return options


def _is_fullgraph(context: Any, chain: list[Any]) -> bool:
    """Older versions of torch do not keep it in the context, but in what converts the frames."""
    if hasattr(context, "fullgraph"):
        return bool(context.fullgraph)
    return any(type(part).__name__ == "ConvertFrameAssert" for part in chain[:2])


def _backend_options(backend: Any) -> dict[str, Any]:
    """The backend, with its mode or its options."""
    kind = type(backend).__name__
    if kind in ("_TorchCompileInductorWrapper", "_TorchCompileAOTInductorWrapper"):
        name = getattr(backend, "name", None)
        return {"backend": "inductor", **_inductor_options(backend, kind), **_given(name=name)}
    if kind == "_TorchCompileWrapper":
        return {"backend": _backend_name(backend), **backend.kwargs}
    return {"backend": backend}


def _inductor_options(backend: Any, kind: str) -> dict[str, Any]:
    """By the name of the mode where the settings are those of one: names outlive what they stand for."""
    from torch._inductor import list_mode_options

    config = dict(backend.config)
    if kind == "_TorchCompileAOTInductorWrapper":
        return {"options": {**config, "use_aoti": True}}
    if not config:
        return {}
    for mode, options in list_mode_options(dynamic=backend.dynamic).items():
        if options == config:
            return {"mode": mode}
    return {"options": config}


def _backend_name(wrapper: Any) -> Any:
    """The name under which a backend is registered, else the backend itself."""
    from torch._dynamo.backends import registry

    known = getattr(registry, "_COMPILER_FNS", {})
    return wrapper.compiler_name if known.get(wrapper.compiler_name) is wrapper.compiler_fn else wrapper.compiler_fn


def _extras(function: types.FunctionType, target: Any) -> dict[str, Any]:
    """Attributes that somebody set on a compiled function; those of what was compiled come again by themselves."""
    inherited = static_vars(target)
    return {
        name: value
        for name, value in function.__dict__.items()
        if not name.startswith(_MARK)
        and name not in _MADE_BY_TORCH
        and not (name in inherited and inherited[name] is value)
    }


def _same(old: Any, new: Any) -> bool:
    """Whether the copy of what was compiled is no other one."""
    if old is new:
        return True
    if type(old) is types.MethodType and type(new) is types.MethodType:
        return old.__self__ is new.__self__ and old.__func__ is new.__func__
    return False


# -- compiled functions ------------------------------------------------------------------------------------------------


def reduce_compiled(function: types.FunctionType, pickler: Any) -> Any:
    """By name if one leads to the compiled function, else by recipe."""
    reference = _name_of(function, pickler)
    if reference is not None:
        own = (reference.module, reference.qualname, reference.path) == (function.__module__, function.__qualname__, ())
        return NotImplemented if own else (restore.torch_compiled, tuple(reference))
    recipe = _function_recipe(function)
    if recipe is None:
        return _reduce_wrapper(function, pickler)
    compile_again, options = recipe
    target = _target(function)
    extras = _extras(function, target)
    arguments = (target, options)
    return (compile_again, arguments, extras) if extras else (compile_again, arguments)


#: For one run of a pickler: the ids of the compiled functions that any module has under any name.
_named: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()


def _name_of(function: types.FunctionType, pickler: Any) -> Reference | None:
    """The name of a compiled function; a search of all modules for each of the many that have none would take long."""
    reference = find(function, everywhere=False)
    if reference is not None:
        return reference
    named = _named.get(pickler.by_value)
    if named is None:
        named = _named[pickler.by_value] = {
            id(value)
            for module in list(sys.modules.values())
            for value in list(static_vars(module).values())
            if type(value) is types.FunctionType and value.__dict__ and _MARK + "orig_callable" in value.__dict__
        }
    return find(function) if id(function) in named else None


def _reduce_wrapper(function: types.FunctionType, pickler: Any) -> Any:
    """A function that wraps a compiled one: by value without the marks that ``functools.wraps`` copied."""
    bare = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    bare.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__", "__type_params__"):
        if hasattr(function, name):
            setattr(bare, name, getattr(function, name))
    bare.__dict__.update(
        (name, value)
        for name, value in function.__dict__.items()
        if name == "__wrapped__" or not (name.startswith(_MARK) or name in _MADE_BY_TORCH)
    )
    return sources.function_by_value(pickler.by_value.keep(bare), pickler)


def copy_compiled(function: types.FunctionType, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The function itself, or the same recipe for the copy of what it is bound to."""
    if find(function, everywhere=False) is not None:
        return function
    recipe = _function_recipe(function)
    if recipe is None:
        return NotImplemented
    compile_again, options = recipe
    target = _target(function)
    copied_target = yield target
    if _same(target, copied_target) and not entangled([options], memo):
        return function
    copied_options = yield options
    if id(function) in memo:
        return memo[id(function)]  # what it is bound to holds it, and was copied with it
    copied = memo[id(function)] = compile_again(copied_target, copied_options)
    extras = _extras(function, target)
    if extras:
        copied.__dict__.update((yield extras))
    return copied


# -- compiled modules --------------------------------------------------------------------------------------------------


def _optimized_state(module: Any) -> dict[str, Any]:
    """What an ``OptimizedModule`` has of its own: hooks, and attributes that shadow those of the module in it."""
    return {
        name: value
        for name, value in static_vars(module).items()
        if name not in _MADE_FOR_MODULE
        and not name.startswith(_MARK)
        and value is not None
        and not (isinstance(value, dict) and not value)
    }


def reduce_optimized(module: Any) -> tuple[Any, ...]:
    """The module inside and the options."""
    compile_again, options = _recipe(static_vars(module)["dynamo_ctx"])
    arguments = (static_vars(module)["_modules"]["_orig_mod"], options)
    state = _optimized_state(module)
    if not state:
        return compile_again, arguments
    return compile_again, arguments, state, None, None, restore.fill_torch_optimized_module


def copy_optimized(module: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """The same recipe for the copy of the module inside."""
    compile_again, options = _recipe(static_vars(module)["dynamo_ctx"])
    inner = yield static_vars(module)["_modules"]["_orig_mod"]
    options = yield options
    if id(module) in memo:
        return memo[id(module)]  # the module inside holds it, and was copied with it
    copied = memo[id(module)] = compile_again(inner, options)
    state = _optimized_state(module)
    if state:
        restore.fill_torch_optimized_module(copied, (yield state))
    return copied


def reduce_context(context: Any) -> tuple[Any, ...]:
    """What compiles functions by these options."""
    compile_again, options = _recipe(context)
    return restore.torch_compiler, (compile_again.__name__, options)


def is_config_patch(cls: type) -> bool:
    """Whether the class is what ``torch._dynamo.config.patch(...)`` makes, one for each call."""
    return cls.__qualname__ == "ConfigModule.patch.<locals>.ConfigPatch"


def reduce_config_patch(patch: Any) -> Any:
    """The module of settings and what is changed there; what it was before matters while the patch is in force."""
    config = cell_value(type(patch).__enter__, "config")
    if config is None:
        return NotImplemented
    return restore.torch_config_patch, (config.__name__, dict(patch.changes))


# -- modules with a compiled call, or with hooks -----------------------------------------------------------------------


def reduce_module(module: torch.nn.Module, pickler: Any) -> Any:
    """As torch does it, and ``module.compile()`` and hooks as well; declines where there is nothing to add."""
    attributes = static_vars(module)
    compiled = attributes.get("_compiled_call_impl")
    hooked = any(attributes.get(name) for name in _HOOKS)
    if compiled is None and not hooked:
        return NotImplemented
    reduced = module.__reduce_ex__(4 if pickler is None else pickler.protocol)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    function, arguments, state = reduced[:3]
    if compiled is not None:
        state = {**state, "_compiled_call_impl": compiled}
    return (function, arguments, state, *reduced[3:5], *[None] * (5 - len(reduced)), restore.fill_torch_module)
