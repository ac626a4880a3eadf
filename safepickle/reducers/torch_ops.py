"""Rules for PyTorch's operators.

- overloads, packets, namespaces, higher-order operators: by name; loading makes sure that a custom one is registered
- custom operators (``custom_op``, ``triton_op``) and ``wrap_triton``: by the name that leads to them, else by value:
  their functions, registered again unless the process has an operator of that name
- ``torch.library.Library``: by the name that leads to it
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any, Final

import torch

from .. import restore
from ..errors import PicklingError
from ..references import find, find_stand_in, importable, static_vars
from ..registry import SHARE, Registry
from .torch_compile import cell_value

__all__ = ["add_rules", "custom_packets"]

ORIGIN: Final = __name__


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    by_name = ("by name", "shared")
    for name in ("OpOverload", "OpOverloadPacket", "HigherOrderOperator"):
        registry.add(f"torch._ops:{name}", reduce_operator if name != "HigherOrderOperator" else reduce_higher_order,
                     copy=SHARE, subclasses=True, origin=ORIGIN, summary=by_name)  # fmt: skip
    for name in ("torch._ops:_Ops", "torch._ops:_OpNamespace", "torch._ops:_HigherOrderNamespace",
                 "torch._classes:_Classes", "torch._classes:_ClassNamespace"):  # fmt: skip
        registry.add(name, reduce_namespace, copy=SHARE, origin=ORIGIN, summary=by_name)
    by_value = ("by name, else its functions, registered again", "shared")
    registry.add("torch._library.custom_ops:CustomOpDef", reduce_custom_op, copy=SHARE, origin=ORIGIN, summary=by_value)
    registry.add("torch._higher_order_ops.triton_kernel_wrap:TraceableTritonKernelWrapper", reduce_wrapped_kernel,
                 copy=SHARE, origin=ORIGIN, summary=("by name, else its kernel and grid", "shared"))  # fmt: skip
    registry.add("torch.library:Library", reduce_library, copy=SHARE, origin=ORIGIN,
                 summary=("by name, else an error", "shared"))  # fmt: skip


# -- by name -----------------------------------------------------------------------------------------------------------


def reduce_operator(operator: Any) -> tuple[Any, ...]:
    """A packet or an overload by its name, and who defines it."""
    packet = getattr(operator, "overloadpacket", operator)
    overload = operator._overloadname if packet is not operator else None
    name = packet._qualified_op_name
    definition = _definition(name)
    return restore.torch_operator, (name, overload, *([definition] if definition is not None else []))


def _definition(name: str) -> Any:
    """The custom operator, or the module that must be imported, for the operator to exist; ``None`` for torch's own."""
    if name.partition("::")[0] in _BUILT_IN:
        return None
    library = sys.modules.get("torch._library.custom_ops")
    custom = None if library is None else library.OPDEFS.get(name)
    return custom if custom is not None else _registering_module(name)


_BUILT_IN: Final = frozenset(
    {"aten", "prim", "prims", "inductor", "quantized", "profiler", "c10d", "_c10d_functional", "onednn"}
)


def custom_packets(names: Iterable[str]) -> tuple[Any, ...]:
    """The operators of these names that are not torch's own: what is loaded with them is sure to find them."""
    found = {name.partition(".")[0] for name in names if name.partition("::")[0] not in _BUILT_IN}
    packets = []
    for name in sorted(found):
        namespace, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is not None:
            packets.append(packet)
    return tuple(packets)


def _registering_module(name: str) -> str | None:
    """The importable module whose file registered the operator, or that is named like its namespace."""
    try:
        registered = re.search(r"^debug: registered at (.+):\d+$", torch._C._dispatch_dump(name), re.MULTILINE)
    except RuntimeError:
        registered = None
    if registered is not None and registered[1].endswith(".py"):
        path = os.path.realpath(registered[1])
        for module_name, module in list(sys.modules.items()):
            file = static_vars(module).get("__file__")
            if isinstance(file, str) and os.path.realpath(file) == path and importable(module_name):
                return module_name
    namespace = name.partition("::")[0]
    return namespace if importable(namespace) else None


def reduce_higher_order(operator: Any) -> Any:
    """A higher-order operator by its name and its module, which registers it."""
    name: str = operator._name
    if getattr(torch.ops.higher_order, name, None) is not operator:
        return NotImplemented
    return restore.torch_higher_order_operator, (name, type(operator).__module__)


def reduce_namespace(namespace: Any) -> tuple[Any, ...]:
    """``torch.ops``, ``torch.classes``, or what they make below them."""
    root = "classes" if type(namespace).__module__ == "torch._classes" else "ops"
    if namespace is getattr(torch, root):
        return restore.torch_namespace, (root, None)
    name = static_vars(namespace).get("name", "higher_order")
    return restore.torch_namespace, (root, name)


# -- custom operators --------------------------------------------------------------------------------------------------


def reduce_custom_op(operator: Any) -> tuple[Any, ...]:
    """By name, else what it was made from and what was registered for it."""
    reference = find(operator)
    if reference is not None:
        return restore.torch_custom_op_named, tuple(reference)
    functions: dict[str, Any] = {}
    for key, attribute in (("fake", "_abstract_fn"), ("vmap", "_vmap_fn"), ("backward", "_backward_fn"),
                           ("setup_context", "_setup_context_fn")):  # fmt: skip
        function = getattr(operator, attribute, None)
        if function is not None:
            functions[key] = function
    arguments = [argument for argument in operator._opoverload._schema.arguments if argument.alias_info is not None]
    options: dict[str, Any] = {
        "mutates_args": tuple(argument.name for argument in arguments if argument.alias_info.is_write),
        "schema": operator._schema,
    }
    if getattr(operator, "_tags", ()):
        options["tags"] = [str(tag).rpartition(".")[2] for tag in operator._tags]
    if getattr(operator, "_autocast_dtype", None):
        options["autocast"] = {device: dtype for device, dtype in operator._autocast_dtype.items() if dtype is not None}
    traceable = _traceable(operator)
    if traceable is not None:
        functions.pop("fake", None)  # registered with it
        return restore.torch_triton_op, (operator._qualname, traceable, options, functions)
    functions["kernels"] = [(device, _kernel(function)) for device, function in operator._backend_fns.items()]
    return restore.torch_custom_op, (operator._qualname, operator._init_fn, options, functions)


def _traceable(operator: Any) -> Any:
    """The function that ``triton_op`` was given; ``None`` for operators that ``custom_op`` made."""
    function = operator._init_fn
    home = getattr(function, "__globals__", {}).get("__name__")
    return cell_value(function, "fn") if home == "torch._library.triton" and function.__name__ == "backend_fn" else None


def _kernel(function: Any) -> Any:
    """The function that was registered for a device: torch wraps it twice."""
    return cell_value(getattr(function, "__wrapped__", function), "fn")


def reduce_wrapped_kernel(wrapper: Any) -> tuple[Any, ...]:
    """By name, else the kernel and its grid."""
    reference = find_stand_in(wrapper) or find(wrapper)
    if reference is not None:
        return restore.torch_wrapped_kernel_named, tuple(reference)
    return restore.torch_wrapped_kernel, (wrapper.kernel, wrapper.grid)


def reduce_library(library: Any) -> tuple[Any, ...]:
    """By name: registrations belong to the process that made them."""
    reference = find(library)
    if reference is None:
        raise PicklingError(
            f"cannot pickle the torch.library.Library of {library.ns!r}: what it registered belongs to this process. "
            "Keep it in a module, under a name, so that it goes by reference"
        )
    return restore.torch_library, tuple(reference)
