"""What a pickle calls for compiled functions of jax, numba, helion, tilelang, cuda.tile and cupy."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ..errors import UnpicklingError
from .checks import _check
from .identities import identities
from .names import resolve

__all__ = [
    "COMPILED",
    "compiled",
    "fill_jax_custom_derivative",
    "jax_custom_derivative",
    "jax_jit",
]


#: The types of objects that take a function's place in a module, beside Triton's kernels.
COMPILED = (
    "jaxlib._jax:PjitFunction",
    "jaxlib.xla_extension:PjitFunction",
    "jax._src.custom_derivatives:custom_jvp",
    "jax._src.custom_derivatives:custom_vjp",
    "helion.runtime.kernel:Kernel",
    "tilelang.jit:JITImpl",
    "cuda.tile._execution:kernel",
    "numba.core.dispatcher:Dispatcher",
    "numba.core.ccallback:CFunc",
    "numba.np.ufunc.dufunc:DUFunc",
    "numba.np.ufunc.gufunc:GUFunc",
    "numba.stencils.stencil:StencilFunc",
    "cupy._core.raw:RawKernel",
    "cupy._core._kernel:ElementwiseKernel",
    "cupy._core._reduction:ReductionKernel",
)


def compiled(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The compiled function of that name; nothing else is returned, whatever the name leads to."""
    found = resolve(module, qualname, path)
    if not any(f"{base.__module__}:{base.__qualname__}" in COMPILED for base in type(found).__mro__):
        raise UnpicklingError(
            f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to an object of type "
            f"{type(found).__module__}."
            f"{type(found).__qualname__}, which is no compiled function of a library that is known here"
        )
    return found


def jax_jit(identity: str, function: Any, options: dict[str, Any]) -> Any:
    """The jitted function of that identity if it lives here, else ``jax.jit(function, **options)``."""
    import jax

    _check(identity, str, "the identity of a compiled function")
    _check(options, dict, "the options of jax.jit")
    if not callable(function):
        raise UnpicklingError(f"malformed pickle: jax.jit needs a function, not {type(function).__qualname__}")
    with identities.lock:
        known = identities.object_of(identity)
        if known is not None:
            return known
        parameters = inspect.signature(jax.jit).parameters
        made = jax.jit(function, **{name: value for name, value in options.items() if name in parameters})
        identities.remember(made, identity)
        return made


def jax_custom_derivative(kind: str) -> Any:
    """An empty ``jax.custom_jvp`` or ``jax.custom_vjp``; its functions follow."""
    import jax

    if kind not in ("custom_jvp", "custom_vjp"):
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of custom derivative")
    return object.__new__(getattr(jax, kind))


def fill_jax_custom_derivative(derivative: Any, state: dict[str, Any]) -> None:
    """Give a custom derivative its functions."""

    import jax

    _check(derivative, (jax.custom_jvp, jax.custom_vjp), "a custom derivative")
    functools.update_wrapper(derivative, state["fun"])
    vars(derivative).update(state)
