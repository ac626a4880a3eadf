"""Rules for what ``tf.function`` makes.

- a ``tf.function`` that a name leads to: by that name; shared by a copy, with its traces
- any other: rebuilt from its Python function and all its options, untraced; graphs never travel. In the process that
  made it, loading gives the living one, if it belongs to a name there or holds no state
- one that is bound to an instance, however it came to be: bound to the restored, or copied, instance
- a concrete function: by signature on its ``tf.function``
- graphs, and the functions of a SavedModel: an error
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from .. import references, restore, sources
from ..digests import content_digest
from ..errors import PicklingError
from ..reachability import function_parts
from ..registry import SHARE, Registry
from .marked import MARKS

__all__ = ["add_rules", "binding_of", "decline", "python_function", "rebound", "refuse"]

ORIGIN: Final = __name__
PACKAGE: Final = "tensorflow.python.eager.polymorphic_function"

#: What TensorFlow itself keeps in a Function; everything else in its dictionary is the user's.
INTERNALS: Final = frozenset(
    {
        "_lock", "_python_function", "_function_spec", "_function_type", "_default_values", "_function_cache",
        "_function_captures", "_attributes", "_is_pure", "_shared_rendezvous", "_autograph",
        "_experimental_autograph_options", "_reduce_retracing", "_jit_compile", "_created_variables",
        "_variable_creation_config", "_no_variable_creation_config", "_variable_creation_fn",
        "_no_variable_creation_fn", "_concrete_variable_creation_fn", "_descriptor_cache", "_name",
        "_key_for_call_stats", "_omit_frequent_tracing_warning", "_tf_decorator", "__name__", "__qualname__",
        "__module__", "__doc__", "__wrapped__", "__original_wrapped__", "__signature__", "__self__",
        "_safepickle_instance",
    }
)  # fmt: skip


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(
        f"{PACKAGE}.polymorphic_function:Function", reduce_function, copy=copy_function, shallow=copy_function_once,
        with_pickler=True, origin=ORIGIN,
        summary=("by name, else its Python function and options; graphs are dropped",
                 "shared if named, else untraced; one bound to an instance is bound to the copy"),
    )  # fmt: skip
    registry.add(
        f"{PACKAGE}.concrete_function:ConcreteFunction", reduce_concrete, copy=copy_concrete, shallow=SHARE,
        subclasses=True, origin=ORIGIN,
        summary=("by signature on its tf.function", "shared; of the copied tf.function if that is copied"),
    )  # fmt: skip
    registry.add(MARKS["_tf_decorator"], reduce_decorated, with_pickler=True, pickles_only=True, origin=ORIGIN)
    add_refusals(registry)
    # Tables of traces, of which the copier must not think that they are part of the object.
    for name in (
        "tensorflow.core.function.polymorphism.function_cache:FunctionCache",
        "tensorflow.core.function.capture.capture_container:FunctionCaptures",
        f"{PACKAGE}.tracing_compilation:TracingOptions",
    ):
        registry.add(name, copy=SHARE, origin=ORIGIN)


def add_refusals(registry: Registry) -> None:
    """Graphs and what is loaded as a graph."""
    an_error = "an error that says what to do"
    traced = (
        "the graph of a traced function belongs to its process: pickle the tf.function, which is traced again where it "
        "is loaded"
    )
    for name in ("tensorflow.python.framework.func_graph:FuncGraph", f"{PACKAGE}.atomic_function:AtomicFunction"):
        # Shared: else the copier takes what a trace has captured for a part of the object that holds the function.
        registry.add(name, refuse(traced), copy=SHARE, subclasses=True, origin=ORIGIN, summary=(an_error, "shared"))
    for name, message in {
        "tensorflow.python.framework.ops:Graph": (
            "a graph belongs to its process: pickle the function that builds it, or graph.as_graph_def()"
        ),
        "tensorflow.python.saved_model.function_deserialization:RestoredFunction": (
            "a function of a SavedModel has no Python code: pickle the path, and call tf.saved_model.load(path) where "
            "it is needed"
        ),
    }.items():
        registry.add(name, refuse(message), subclasses=True, origin=ORIGIN, summary=(an_error, an_error))


def refuse(message: str) -> Callable[[Any], Any]:
    """A reducer that raises an error which says what to do."""

    def reduce(obj: Any) -> Any:
        raise PicklingError(f"cannot pickle a {type(obj).__name__}: {message}")

    return reduce


def decline(obj: Any) -> Any:
    """For a shallow copy: the standard library's way."""
    return NotImplemented


# -- pickling ----------------------------------------------------------------------------------------------------------


def reduce_function(function: Any, pickler: Any) -> Any:
    """By instance and name, by name, or by value."""
    binding = binding_of(function)
    if binding is not None:
        return restore.tf_method, tuple(binding)
    reference = references.find(function)
    if reference is not None:
        if pickler is not None and pickler.pin is not None:
            return restore.pinned_tf_function, (*reference, restore.source_digest(function), pickler.pin)
        own = function.__dict__.get("__module__") == reference.module
        if own and not reference.path and "." not in reference.qualname:
            return reference.qualname  # a bare global, which loads without this package
        return restore.tf_function_by_name, tuple(reference)
    inner = python_function(function)
    identity, stateless = identity_of(function, inner, pickler)
    state = function_state(function, inner)
    return restore.tf_function, (identity, stateless), state, None, None, restore.fill_tf_function


def function_state(function: Any, inner: Any) -> dict[str, Any]:
    """The Python function, the options of the constructor, and what the user has set."""
    state: dict[str, Any] = {
        "function": inner,
        "name": function._name,
        "options": {
            "input_signature": function.input_signature,
            "autograph": function._autograph,
            "jit_compile": function._jit_compile,
            "reduce_retracing": function._reduce_retracing,
            "experimental_autograph_options": function._experimental_autograph_options,
            "experimental_attributes": dict(function._attributes),
        },
        "attributes": _user_attributes(function, inner),
    }
    has_defaults = type(inner) is types.FunctionType and (inner.__defaults__ or inner.__kwdefaults__)
    if has_defaults and references.find(inner, everywhere=False) is None:
        state["defaults"] = (inner.__defaults__, inner.__kwdefaults__)
    return state


def _user_attributes(function: Any, inner: Any) -> dict[str, Any]:
    inherited = references.static_vars(inner)
    return {
        name: value
        for name, value in function.__dict__.items()
        if name not in INTERNALS and not name.startswith("_self_") and inherited.get(name) is not value
    }


def python_function(function: Any) -> Any:
    """The Python function; for a decorated method that no attribute of a class leads to, the method of the instance."""
    wrapped = function.__dict__.get("__wrapped__")
    if _is_method_target(wrapped):
        return types.MethodType(wrapped.__func__, _target(wrapped, function))
    return function._python_function


def reduce_decorated(function: types.FunctionType, pickler: Any) -> Any:
    """A plain function that wraps a ``tf.function`` (``tf.Module.with_name_scope``), without the traces of that.

    TensorFlow's decorators copy the dictionary of what they wrap, with its lock and its traces.
    """
    reduced = sources.reduce_function(function, pickler)
    target = function.__dict__.get("__wrapped__")
    copied = references.static_vars(target)
    if type(reduced) is tuple and reduced[0] is restore.make_function and "_function_cache" in copied:
        attributes = reduced[2]["vars"]
        for name in list(attributes):
            if name in INTERNALS and name in copied and attributes[name] is copied[name]:
                del attributes[name]
    return reduced


# -- bound to an instance ----------------------------------------------------------------------------------------------


class Binding(NamedTuple):
    """The function that ``instance.name`` gives, where ``name`` is decorated in the class."""

    instance: Any
    owner: type | None
    name: str


def _is_method_target(wrapped: Any) -> bool:
    return type(wrapped) is types.MethodType and type(wrapped.__self__).__name__ == "TfMethodTarget"


def _target(wrapped: types.MethodType, function: Any) -> Any:
    instance = wrapped.__self__.target  # type: ignore[attr-defined]
    if instance is None:
        raise PicklingError(
            f"cannot pickle the tf.function {function._name!r}: the instance whose method it is no longer exists; keep "
            "it, or pickle it along"
        )
    return instance


def binding_of(function: Any) -> Binding | None:
    """Which instance has this function as which decorated method, if any."""
    wrapped = function.__dict__.get("__wrapped__")
    if not _is_method_target(wrapped):
        return None
    instance = _target(wrapped, function)
    cls = instance if isinstance(instance, type) else type(instance)
    for base in cls.__mro__:
        for name, attribute in list(vars(base).items()):
            if _gives(attribute, instance, function):
                shown = inspect.getattr_static(cls, name, None) is attribute
                return Binding(instance, None if shown else base, name)
    return None


def _gives(attribute: Any, instance: Any, function: Any) -> bool:
    if type(attribute) is classmethod:
        attribute = attribute.__func__
    table = references.static_vars(attribute).get("_descriptor_cache")
    return table is not None and table.get(instance) is function


# -- identity ----------------------------------------------------------------------------------------------------------


def identity_of(function: Any, inner: Any, pickler: Any) -> tuple[str | None, bool]:
    """The identity under which loading finds the living function at home, and whether it may be shared elsewhere."""
    if pickler.canonical or getattr(pickler.by_value, "long_chain", False):
        return None, False
    try:
        if type(inner) is not types.FunctionType or any(holds_state(part, set()) for part in function_parts(inner)):
            return None, False  # a method, a callable object or a closure over objects: it travels with those
        stateless = not holds_state(inner, set())
        if not stateless and not has_name_here(function):
            return None, False
        # Made anew each time: what the function refers to may have changed, and then a worker needs the new one.
        digest = content_digest(function, pickler.registry)
    except RecursionError:
        pickler.by_value.long_chain = True  # functions nested this deep go without identities
        return None, False
    identity = f"{function.__module__}:{function._name}:{digest[:24]}"
    known = restore.identities.identity_of(function)
    if known is None or not known.startswith(identity):
        known = restore.identities.remember(function, identity)
    return known, stateless


def has_name(function: Any) -> bool:
    """Whether any name leads to it, here or in a fresh process."""
    return has_name_here(function) or references.find(function) is not None


def has_name_here(function: Any) -> bool:
    """Whether a module of this process, importable or not, has it under a name: ``__main__`` above all."""
    module = sys.modules.get(function.__module__ or "")
    if module is None:
        return False
    try:
        if references.walk(module, function.__qualname__) is function:
            return True
    except Exception:
        pass  # a local function
    return any(value is function for value in list(references.static_vars(module).values()))


_CONSTANT: Final = (
    type(None), bool, int, float, complex, str, bytes, type, range, types.ModuleType, types.BuiltinFunctionType
)  # fmt: skip


def holds_state(obj: Any, seen: set[int]) -> bool:
    """Whether a function by value takes along what can change: in its cells, its defaults or the globals it uses."""
    if isinstance(obj, _CONSTANT) or id(obj) in seen:
        return False
    seen.add(id(obj))
    if isinstance(obj, (tuple, frozenset)):
        return any(holds_state(item, seen) for item in obj)
    if type(obj) is types.FunctionType:
        if references.find(obj, everywhere=False) is not None:
            return False
        used = [obj.__globals__[name] for name in sources.global_names(obj.__code__) if name in obj.__globals__]
        return any(holds_state(part, seen) for part in [*used, *function_parts(obj)])
    inner = references.static_vars(obj).get("_python_function")
    if inner is not None:
        return references.find(obj) is None and holds_state(inner, seen)
    return not _is_tensorflow_constant(obj)


def _is_tensorflow_constant(obj: Any) -> bool:
    import tensorflow as tf

    if isinstance(obj, (tf.DType, tf.TensorShape, tf.TypeSpec)):
        return True
    return isinstance(obj, tf.Tensor) and hasattr(obj, "numpy") and not isinstance(obj, tf.Variable)


# -- copying -----------------------------------------------------------------------------------------------------------


def copy_function(function: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """An untraced one, on the copy of its instance or of what its closure holds; itself if it has a name and holds
    nothing that is copied."""
    binding = binding_of(function)
    if binding is not None:
        instance = yield binding.instance
        return function if instance is binding.instance else restore.tf_method(instance, *binding[1:])
    inner = python_function(function)
    named = has_name(function)
    if named and type(inner) is types.FunctionType and not inner.__closure__:
        return function
    twin = memo[id(function)] = restore.tf_function(None, False)
    copied = yield inner
    if named and copied is inner:
        memo[id(function)] = function
        return function
    state = function_state(function, copied)
    state["attributes"] = yield _user_attributes(function, inner)
    restore.fill_tf_function(twin, state)
    return twin


def copy_function_once(function: Any) -> Any:
    """Itself if it has a name or an instance, else an untraced one on the same Python function."""
    if binding_of(function) is not None or has_name(function):
        return function
    return rebound(function, python_function(function))


def rebound(function: Any, inner: Any) -> Any:
    """An untraced function with the same options on another Python function."""
    twin = restore.tf_function(None, False)
    restore.fill_tf_function(twin, function_state(function, inner))
    return twin


# -- concrete functions ------------------------------------------------------------------------------------------------


def reduce_concrete(concrete: Any) -> tuple[Any, ...]:
    """The function that it was traced from, and its signature."""
    return restore.tf_concrete_function, _recipe(concrete)


def copy_concrete(concrete: Any, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """Itself, or one of the copied function."""
    function, args, kwargs = _recipe(concrete)
    twin = yield function
    if twin is function:
        return concrete
    known = memo.get(id(concrete))  # the instance that the function is bound to may hold this one too
    return restore.tf_concrete_function(twin, args, kwargs) if known is None else known


def _recipe(concrete: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    recipe = concrete.__dict__.get("_safepickle_recipe")
    if recipe is not None:
        return recipe  # type: ignore[no-any-return]
    owner = _traced_by(concrete)
    if owner is None:
        raise PicklingError(
            f"cannot pickle the ConcreteFunction {concrete._func_graph.name!r}: the tf.function that it was traced "
            "from no longer exists. Keep that one, as in self.step = tf.function(...); self.concrete = "
            "self.step.get_concrete_function(...), or pickle it instead"
        )
    args, kwargs = concrete.structured_input_signature
    return owner, args, kwargs


def _traced_by(concrete: Any) -> Any:
    """The function in whose table of traces it is. It has no reference back, so all living functions are asked."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    for candidate in gc.get_objects():
        if type(candidate) is Function:
            table = candidate.__dict__.get("_function_cache")
            if table is not None and any(traced is concrete for traced in table.values()):
                return candidate
    return None
