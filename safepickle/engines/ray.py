"""How do objects travel between the driver of Ray, its workers and its object store?

Ray pickles with ``ray.cloudpickle.dumps``, its copy of cloudpickle: arguments, results, what is put, functions, actors
and errors. Here that function, ``dump`` beside it and the class of the pickler ask the rules, in every process that has
:func:`install`. What was registered with Ray, by itself (``ObjectRef``, actor handles) or with
``ray.util.register_serializer``, comes first.

:func:`runtime_env` brings it to the workers: ``ray.init(runtime_env=safepickle.engines.ray.runtime_env())``.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import ray.cloudpickle
from ray.cloudpickle import CloudPickler

import safepickle

from ..changes import Changes
from ..pickler import Pickler
from ..registry import Registry, default_registry
from .foreign_picklers import adopt

__all__ = ["dump", "dumps", "install", "runtime_env", "set_up_worker"]

_HOOK: Final = "worker_process_setup_hook"
_HOOK_NAME: Final = f"{__name__}.set_up_worker"

_vendored: Final = sys.modules["ray.cloudpickle.cloudpickle"]
_dumps_as_ray: Final[Callable[..., Any]] = ray.cloudpickle.dumps
_dump_as_ray: Final[Callable[..., Any]] = ray.cloudpickle.dump


def install(changes: Changes) -> None:
    """Have Ray pickle by the rules in this process."""
    for module in (ray.cloudpickle, _vendored):
        for name, theirs, ours in (("dumps", _dumps_as_ray, dumps), ("dump", _dump_as_ray, dump)):
            if vars(module).get(name) is theirs:
                changes.set_attribute("ray", module, name, ours, where=f"{module.__name__}.{name}")
    # Ray Serve, compiled graphs and Ray Client derive picklers from the class.
    adopt(changes, "ray", CloudPickler, where="ray.cloudpickle.CloudPickler")


def runtime_env(
    other_hook: str | Callable[[], object] | None = None, /, **runtime_env: Any
) -> dict[str, Any]:
    """A runtime environment in which workers have safepickle installed; this process gets it, too.

    Args:
        other_hook: what else each worker calls when it starts: a function of no arguments, or its importable name.
            Ray has one hook a job, so a ``worker_process_setup_hook`` goes here (or is given as such).
        runtime_env: the other fields, as for ``ray.init(runtime_env=...)``.

    Returns:
        What ``ray.init(runtime_env=...)`` takes.

    Raises:
        TypeError: two hooks are given.
    """
    theirs = runtime_env.pop(_HOOK, None)
    if theirs is not None and other_hook is not None:
        raise TypeError(f"other_hook and {_HOOK} mean the same: give one of them")
    safepickle.install("ray")
    other = theirs if other_hook is None else other_hook
    return {**runtime_env, _HOOK: _HOOK_NAME if other is None or other == _HOOK_NAME else _both(other)}


def _both(other: str | Callable[[], object]) -> Callable[[], None]:
    """A hook that is ours, and another one's."""

    def set_up_worker_and_more() -> None:
        from safepickle.engines import ray as adapter

        adapter.set_up_worker()
        hook = adapter.importable(other) if isinstance(other, str) else other
        hook()

    return set_up_worker_and_more


def importable(name: str) -> Any:
    """What ``"package.module.function"`` names, as Ray reads it."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def set_up_worker() -> None:
    """Install safepickle in this worker: the hook for ``worker_process_setup_hook``, by name."""
    safepickle.install("ray")


# -- pickling ----------------------------------------------------------------------------------------------------------


def dump(
    obj: Any,
    file: Any,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> None:
    """In place of ``ray.cloudpickle.dump``, with its arguments.

    Raises:
        PicklingError: some part of the object cannot be pickled; the message says which and where.
    """
    if protocol is None:
        protocol = pickle.HIGHEST_PROTOCOL
    Pickler(file, protocol, buffer_callback=buffer_callback, registry=_registry()).dump(obj)


def dumps(
    obj: Any, protocol: int | None = None, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """In place of ``ray.cloudpickle.dumps``, with its arguments.

    Raises:
        PicklingError: as :func:`dump`.
    """
    file = BytesIO()
    dump(obj, file, protocol, buffer_callback)
    return file.getvalue()


class _RaysRules:
    """The default rules, with what is registered with Ray in front of them."""

    def __init__(self) -> None:
        self.known: dict[type, Any] = {}
        self.registry = Registry(default_registry)


_rules = _RaysRules()


def _registry() -> Registry:
    """The rules as of now: Ray registers its types when it connects, its users whenever they like."""
    global _rules
    registered = {
        cls: reducer
        for cls, reducer in CloudPickler.dispatch.maps[0].copy().items()
        if getattr(reducer, "__module__", None) != _vendored.__name__  # what any cloudpickle does
    }
    if registered != _rules.known:
        rules = _RaysRules()
        for cls, reducer in registered.items():
            rules.registry.register(cls, reducer)
        rules.known = registered
        _rules = rules
    return _rules.registry
