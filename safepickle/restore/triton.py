"""What a pickle calls for kernels, launchers and configurations of Triton."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import types
import warnings
from typing import Any

from ..errors import UnpicklingError
from ..references import static_vars
from .checks import _check
from .classes import _named_here
from .functions import _UNFINISHED, register_source, renamed, source_file
from .identities import identities
from .names import check_pin, resolve

__all__ = [
    "constexpr",
    "fill_config",
    "fill_kernel",
    "kernel",
    "kernel_method",
    "launcher",
    "make_config",
    "make_kernel",
    "pinned_kernel",
]


def kernel(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The kernel of that name; nothing else is returned, whatever the name leads to.

    Raises:
        UnpicklingError: the name leads nowhere, or to something that is no kernel.
    """
    found = resolve(module, qualname, path)
    _check_kernel(found, f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to")
    return found


def pinned_kernel(module: str, qualname: str, path: tuple[str, ...], digest: str, mode: str) -> Any:
    """The kernel of that name, if its source is still the one of that hash."""
    found = kernel(module, qualname, path)
    check_pin(found, ".".join([f"{module}:{qualname}", *path]), digest, mode)
    return found


def _check_kernel(found: Any, what: str) -> None:
    if not isinstance(found, _kernel_types()):
        raise UnpicklingError(
            f"{what} an object of type {type(found).__module__}.{type(found).__qualname__}, which is no Triton kernel"
        )


def _kernel_types() -> tuple[type, ...]:
    from triton.runtime import jit

    names = (
        jit.KernelInterface,
        jit.JITFunction,
        getattr(jit, "JITCallable", None),
        _interpreted() if _interpreting() else None,
    )
    loaded = sys.modules.get("triton.runtime.interpreter")
    return tuple(cls for cls in (*names, getattr(loaded, "InterpretedFunction", None)) if isinstance(cls, type))


def _interpreting() -> bool:
    """Whether ``triton.jit`` makes functions for Triton's interpreter here."""
    import triton

    try:
        return bool(triton.knobs.runtime.interpret)
    except AttributeError:  # before Triton 3.4
        return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _interpreted() -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction


def launcher(kernel: Any, grid: Any) -> Any:
    """``kernel[grid]``."""
    _check_kernel(kernel, "malformed pickle: a launcher needs a kernel, not")
    return kernel[grid]


def kernel_method(kernel: Any, name: str) -> Any:
    """A method that is bound to a kernel: ``kernel.run``."""
    _check(name, str, "a method name")
    _check_kernel(kernel, f"malformed pickle: the owner of {name!r} must be a kernel, not")
    found = getattr(kernel, name, None)
    made_by_constructor = (
        name == "run" and found is not None and static_vars(kernel).get(name) is found
    )  # until Triton 3.4
    if not (getattr(found, "__self__", None) is kernel or made_by_constructor) or not callable(found):
        raise UnpicklingError(f"{type(kernel).__qualname__} has no method {name!r} here")
    return found


def make_kernel(identity: str, kind: str) -> Any:
    """The kernel of that identity if it lives here, else an empty one, for :func:`fill_kernel` to fill.

    It exists before its parts, so that a part may lead back to it: a kernel that calls itself through its own tuned
        wrapper.
    """
    _check(identity, str, "the identity of a kernel")
    known = identities.object_of(identity)
    if known is None:
        known = _kernel_defined_here(identity)
    if known is not None and isinstance(known, _kernel_types()):
        return known
    cls = _kernel_class(kind)
    made = cls.__new__(cls)
    made.__dict__[_UNFINISHED] = []
    return made


def _kernel_defined_here(identity: str) -> Any:
    """The kernel that this process has under the same name, or below it, if it is made from the very same.

    That is one of ``__main__``, mostly, in a worker that runs the same script.
    """
    kinds = _kernel_types()
    found = _named_here(identity, kinds)
    while isinstance(found, kinds):
        if _has_content(found, identity):
            return found if identities.remember(found, identity) == identity else None
        found = static_vars(found).get("fn")
    return None


def _has_content(kernel: Any, identity: str) -> bool:
    from ..digests import content_digest
    from ..registry import default_registry

    if identities.identity_of(kernel) is not None:
        return False
    try:
        return content_digest(kernel, default_registry)[:24] == identity.rpartition(":")[2]
    except Exception:  # it holds something that cannot be pickled, so it is not the one that was
        return False


def _kernel_class(kind: str) -> Any:
    from triton.runtime import autotuner, jit

    if kind == "jit":  # as triton.jit decides
        return _interpreted() if _interpreting() else jit.JITFunction
    place, name = _KERNEL_CLASSES.get(kind, ("", ""))
    found = getattr({"autotuner": autotuner, "jit": jit}.get(place), name, None)
    if kind == "gluon":
        try:
            found = importlib.import_module("triton.experimental.gluon._runtime").GluonJITFunction
        except (ImportError, AttributeError):
            found = None
    if found is None:
        raise UnpicklingError(
            f"Triton {_triton_version()} has no kernels of kind {kind!r}; the pickle is from another version"
        )
    return found


_KERNEL_CLASSES = {
    "autotuner": ("autotuner", "Autotuner"),
    "heuristics": ("autotuner", "Heuristics"),
    "constexpr": ("jit", "ConstexprFunction"),
}


def _triton_version() -> str:
    import triton

    return str(getattr(triton, "__version__", "of unknown version"))


def fill_kernel(kernel: Any, state: dict[str, Any]) -> None:
    """Run the constructor of a kernel, once the function or kernel that it wraps is complete; a kernel that lives
    here stays as it is.

    Raises:
        UnpicklingError: this version of Triton cannot make the kernel.
    """
    _check_kernel(kernel, "malformed pickle: what is filled is")
    if _UNFINISHED not in static_vars(kernel):
        return
    waiting = static_vars(state["fn"]).get(_UNFINISHED)
    if waiting is not None:
        waiting.append(lambda: fill_kernel(kernel, state))
        return
    try:
        _construct_kernel(kernel, state)
    except Exception as error:
        raise UnpicklingError(
            f"cannot rebuild the kernel {state['identity'].rpartition(':')[0]} with Triton {_triton_version()}: "
            f"{type(error).__name__}: {error}"
        ) from error
    identities.remember(kernel, state["identity"])
    for finish in static_vars(kernel).pop(_UNFINISHED):
        finish()


def _construct_kernel(kernel: Any, state: dict[str, Any]) -> None:
    fn = state["fn"]
    if "values" in state:
        type(kernel).__init__(kernel, fn, state["arg_names"], state["values"])
    elif "configs" in state:
        _construct_autotuner(kernel, state)
    else:
        _construct_jit(kernel, fn, state)


def _construct_jit(kernel: Any, fn: Any, state: dict[str, Any]) -> None:
    from triton.runtime import jit

    _check(fn, types.FunctionType, "the function of a kernel")
    for name, value in state.get("globals", {}).items():
        fn.__globals__.setdefault(name, value)
    if "source" in state:
        _ensure_source(fn, *state["source"])
    # Triton enters each new kernel under its function's name; a kernel that is at home under that name stays there.
    registry = getattr(jit, "_triton_jit_function_registry", {})
    name = f"{fn.__module__}:{fn.__qualname__}"
    at_home = registry.get(name)
    type(kernel).__init__(kernel, fn, **_accepted(type(kernel), state["options"]))
    if at_home is not None:
        registry[name] = at_home
    _restore_text(kernel, state)
    for name, value in state.get("names", {}).items():
        setattr(kernel, name, value)


def _restore_text(kernel: Any, state: dict[str, Any]) -> None:
    """The text and line of the original: the key of compiled kernels is made from them."""
    text, line = state.get("src"), state.get("line")
    if line is not None and getattr(kernel, "starting_line_number", line) != line:
        kernel.starting_line_number = line
    if text is None or getattr(kernel, "src", None) == text:
        return
    if hasattr(kernel, "_unsafe_update_src"):
        kernel._unsafe_update_src(text)
    elif hasattr(kernel, "src"):
        kernel.src = text
    else:
        raise UnpicklingError("its text was replaced after it was made, which Triton's interpreter does not know")


def _construct_autotuner(kernel: Any, state: dict[str, Any]) -> None:

    cls = type(kernel)
    names = ("arg_names", "configs", "key", "reset_to_zero", "restore_value")
    parameters = inspect.signature(cls.__init__).parameters
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if not open_ended and "restore_value" not in parameters:
        raise UnpicklingError("tuned kernels travel by value from Triton 3.0 on")
    options = _accepted(cls, state["options"])
    quiet = options.keys() & {"warmup", "rep", "use_cuda_graph"}
    with warnings.catch_warnings() if quiet else contextlib.nullcontext():
        if quiet:
            warnings.simplefilter("ignore", DeprecationWarning)  # no news to somebody who loads a kernel
        # By position, because there are libraries that wrap the constructor in one that takes only *args and **kwargs.
        cls.__init__(kernel, state["fn"], *(state[name] for name in names), **options)
    kernel.configs = state[
        "configs"
    ]  # where a cycle begins in this list, it is still empty, and the constructor made another


def _accepted(cls: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options that the constructor of this version takes."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return options
    return {name: value for name, value in options.items() if name in parameters}


def _ensure_source(fn: types.FunctionType, text: str, first_line: int) -> None:
    """See to it that ``inspect`` finds this text for the function."""
    try:
        if "".join(inspect.getsourcelines(fn)[0]) == text:
            return
    except (OSError, TypeError, SyntaxError):
        pass
    filename = source_file(fn, text, first_line)
    register_source(filename, text, first_line)
    fn.__code__ = renamed(fn.__code__, filename)


def make_config() -> Any:
    """A ``triton.Config`` with what this version has by default; :func:`fill_config` brings the rest."""
    import triton

    return triton.Config({})


def fill_config(config: Any, state: dict[str, Any]) -> None:
    """Give a configuration its values."""
    import triton

    _check(config, triton.Config, "a configuration")
    _check(state, dict, "the values of a configuration")
    config.__dict__.update(state)


def constexpr(value: Any) -> Any:
    """A constant of a kernel."""
    from triton.language.core import constexpr

    return constexpr(value)
