"""What a pickle calls for variables, functions, tables and datasets of TensorFlow."""

from __future__ import annotations

import contextlib
import inspect
import types
import weakref
from typing import Any

from ..errors import UnpicklingError
from ..references import static_vars
from .checks import _check, _check_subclass
from .identities import identities
from .names import check_pin, resolve

__all__ = [
    "pinned_tf_function",
    "InstanceFunctions",
    "fill_tf_function",
    "tf_concrete_function",
    "tf_context",
    "tf_dataset",
    "tf_default_strategy",
    "tf_function",
    "tf_function_by_name",
    "tf_method",
    "tf_static_table",
    "tf_table",
    "tf_tensor",
    "tf_variable",
]


def tf_tensor(value: Any, dtype: str) -> Any:
    """A tensor of a quantized type from the tensor of plain integers that it is made of."""
    import tensorflow as tf

    _check(value, tf.Tensor, "a tensor")
    kind = tf.as_dtype(dtype)
    if not kind.is_quantized:
        raise UnpicklingError(f"malformed pickle: {dtype!r} is not a quantized type")
    with tf.init_scope():
        return tf.bitcast(value, kind)


def tf_variable(value: Any, options: dict[str, Any]) -> Any:
    """A variable with that value, an array or a tensor; outside of any graph or strategy, whoever loads it."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    _check(value, (np.ndarray, np.generic, bytes, tf.Tensor), "the value of a variable")
    _check(options, dict, "the options of a variable")
    options = dict(options)
    device = options.pop("device", None)
    with tf.init_scope(), _on_device(device):
        return ResourceVariable(initial_value=value, **options)


def _on_device(name: str | None) -> Any:
    """Where a variable was, if there is such a device here."""
    import tensorflow as tf

    if name is None or not any(device.name == name for device in tf.config.list_logical_devices()):
        return contextlib.nullcontext()
    return tf.device(name)


def tf_default_strategy() -> Any:
    """The default distribution strategy of this process."""
    import tensorflow  # noqa: F401
    from tensorflow.python.distribute import distribute_lib

    # Not tf.distribute.get_strategy: within the scope of another strategy that is the other one.
    return distribute_lib._get_default_strategy()


def tf_context() -> Any:
    """The runtime of this process, of which there is one."""
    import tensorflow  # noqa: F401
    from tensorflow.python.eager import context

    return context.context()


def tf_static_table(cls: type, initializer: Any, default: Any, name: str, anonymous: bool) -> Any:
    """A lookup table that does not change, with its contents."""
    import tensorflow as tf
    from tensorflow.python.ops.lookup_ops import StaticHashTable, TableInitializerBase

    _check_subclass(cls, StaticHashTable, "a lookup table")
    _check(initializer, TableInitializerBase, "the initializer of a lookup table")
    with tf.init_scope():
        return cls(initializer, default, name=name, experimental_is_anonymous=anonymous)


def tf_table(cls: type, options: dict[str, Any], contents: tuple[Any, Any]) -> Any:
    """A lookup table that can be changed, with its contents."""
    import tensorflow as tf
    from tensorflow.python.ops.lookup_ops import DenseHashTable, MutableHashTable

    _check_subclass(cls, (MutableHashTable, DenseHashTable), "a lookup table")
    with tf.init_scope():
        table = cls(**options)
        table.insert(*contents)
    return table


def tf_dataset(graph: bytes, element_spec: Any) -> Any:
    """A dataset from the graph of its pipeline."""
    import tensorflow as tf
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    _check(graph, bytes, "the graph of a dataset")
    with tf.init_scope():
        return _VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), element_spec)


def _tf_function_type() -> Any:
    import tensorflow  # noqa: F401  (the whole of it: a part of it cannot be imported first)
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    return Function


def tf_function_by_name(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The ``tf.function`` of that name."""
    found = resolve(module, qualname, path)
    if not isinstance(found, _tf_function_type()):
        raise UnpicklingError(
            f"the reference {module}:{qualname} leads to a {type(found).__qualname__} here, not to a tf.function: is "
            "it decorated here too?"
        )
    return found


def pinned_tf_function(module: str, qualname: str, path: tuple[str, ...], digest: str, mode: str) -> Any:
    """The ``tf.function`` of that name, if its source is still the one of that hash."""
    found = tf_function_by_name(module, qualname, path)
    check_pin(found, ".".join([f"{module}:{qualname}", *path]), digest, mode)
    return found


def tf_function(identity: str | None, stateless: bool) -> Any:
    """The ``tf.function`` of that identity if this process knows it, else a new one for :func:`fill_tf_function`.

    Only one that holds no state is remembered for the next pickle: a second payload of another brings its own state.
    """
    kind = _tf_function_type()
    if identity is None:
        return kind.__new__(kind)
    _check(identity, str, "the identity of a tf.function")
    with identities.lock:
        known = identities.object_of(identity)
        if isinstance(known, kind):
            return known
        made = kind.__new__(kind)
        if stateless:
            identities.remember(made, identity)
        return made


def fill_tf_function(function: Any, state: dict[str, Any]) -> None:
    """Give a ``tf.function`` its Python function and options, unless it has them. It is not traced."""
    kind = _tf_function_type()
    _check(function, kind, "a tf.function")
    if "_python_function" in static_vars(function):
        return
    inner, options, attributes = state["function"], state["options"], state["attributes"]
    if not callable(inner):
        raise UnpicklingError(f"malformed pickle: a tf.function needs a callable, not {type(inner).__qualname__}")
    defaults = state.get("defaults")
    if defaults is not None and type(inner) is types.FunctionType and not (inner.__defaults__ or inner.__kwdefaults__):
        # It refers to this tf.function, and is itself still waiting for its defaults, which are part of the signature.
        inner.__defaults__, inner.__kwdefaults__ = defaults
    kind.__init__(function, inner, state["name"], **options)
    _mark_as_decorator(inner, function)
    function.__dict__.update(attributes)


def _mark_as_decorator(inner: Any, function: Any) -> None:
    """What the decorator ``tf.function`` does besides making the object."""
    from tensorflow.python.util import tf_decorator

    try:
        tf_decorator.make_decorator(inner, function, decorator_name="tf.function")
    except Exception:
        # It asks the owner of a method whether it is true, which an object that is still being loaded cannot say.
        function._tf_decorator = tf_decorator.TFDecorator("tf.function", inner, "", None)
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(function, name, getattr(inner, name, None))
        function.__wrapped__ = function.__original_wrapped__ = inner
        function.__signature__ = inspect.signature(inner)


def tf_method(instance: Any, owner: type | None, name: str) -> Any:
    """The ``tf.function`` of a decorated method as the instance has it.

    Args:
        instance: the object, or the class for a class method.
        owner: the class whose attribute it is, where that is not what the class of the instance shows.
        name: the attribute.
    """
    _check(name, str, "the name of a method")
    cls = instance if isinstance(instance, type) else type(instance)
    found: Any = inspect.getattr_static(cls, name, None) if owner is None else vars(owner).get(name)
    if isinstance(found, classmethod):
        found = found.__func__
    if not isinstance(found, _tf_function_type()):
        raise UnpicklingError(f"{(owner or cls).__qualname__}.{name} is not decorated with tf.function here")
    bound = found.__get__(instance, cls)
    if not isinstance(instance, type):
        _keep_instance(found, instance, bound)
    return bound


class InstanceFunctions(weakref.WeakKeyDictionary[Any, Any]):
    """TensorFlow's table of the functions of a decorated method, by instance.

    TensorFlow's functions hold their instance weakly. One that was loaded from a pickle may be all that there is of its
    instance, so it holds it strongly, and the table holds the function weakly: else the class would keep both for ever.
    """

    def __getitem__(self, instance: Any) -> Any:
        function = super().__getitem__(instance)
        if type(function) is weakref.ref:
            function = function()
            if function is None:
                raise KeyError(instance)
        return function

    def __contains__(self, instance: object) -> bool:
        return self.get(instance) is not None

    def get(self, instance: Any, default: Any = None) -> Any:
        try:
            return self[instance]
        except (KeyError, TypeError):
            return default


def _keep_instance(method: Any, instance: Any, bound: Any) -> None:
    if "_safepickle_instance" in bound.__dict__:
        return
    table = method._descriptor_cache
    if type(table) is not InstanceFunctions:
        table = method._descriptor_cache = InstanceFunctions(table)
    bound.__dict__["_safepickle_instance"] = instance
    table[instance] = weakref.ref(bound)


def tf_concrete_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The concrete function of a signature: the one that is traced already, else one that is traced when it is used.

    While a pickle is loaded, the objects that the function reads may be incomplete.
    """
    _check(function, _tf_function_type(), "a tf.function")
    for traced in function._function_cache.values() if "_function_cache" in function.__dict__ else ():
        if _same_signature(traced.structured_input_signature, (args, kwargs)):
            return traced
    kind = _untraced_type()
    made = kind.__new__(kind)
    made.__dict__["_safepickle_recipe"] = (function, args, kwargs)
    return made


def _same_signature(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arguments that compare to arrays
        return False


_untraced: list[Any] = []


def _untraced_type() -> Any:
    """A concrete function that is traced when something is asked of it."""
    if not _untraced:
        from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

        def trace(self: Any, name: str) -> Any:
            recipe = self.__dict__.get("_safepickle_recipe")
            if recipe is None or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            function, args, kwargs = recipe
            traced = function.get_concrete_function(*args, **kwargs)
            self.__dict__.update(traced.__dict__)
            self.__class__ = ConcreteFunction
            return getattr(self, name)

        body = {"__module__": __name__, "__getattr__": trace}
        _untraced.append(type("UntracedConcreteFunction", (ConcreteFunction,), body))
    return _untraced[0]
