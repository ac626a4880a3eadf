"""What a pickle calls for compiled, scripted and traced code of torch, its graphs and operators."""

from __future__ import annotations

import io
import types
import warnings
from typing import Any

from ..errors import UnpicklingError
from ..references import load
from .checks import _check
from .identities import identities
from .torch import _check_torch_class, _skip_torch_hook_ids, _torch_named

__all__ = [
    "TORCH_FX_NODES",
    "TORCH_FX_ROOT",
    "fill_torch_exported_program",
    "fill_torch_fx_graph",
    "fill_torch_graph_module",
    "fill_torch_module",
    "fill_torch_optimized_module",
    "fill_torch_script_module",
    "torch_compile",
    "torch_compiled",
    "torch_compiler",
    "torch_config_patch",
    "torch_custom_op",
    "torch_custom_op_named",
    "torch_disable",
    "torch_exported_program",
    "torch_fake_mode",
    "torch_fake_tensor",
    "torch_fx_graph",
    "torch_fx_node",
    "torch_graph_module",
    "torch_higher_order_operator",
    "torch_namespace",
    "torch_operator",
    "torch_run_compiled",
    "torch_script_function",
    "torch_script_function_named",
    "torch_script_method",
    "torch_script_module",
    "torch_traced_function",
    "torch_triton_op",
]


_COMPILE_OPTIONS = {
    "backend", "dynamic", "fullgraph", "isolate_recompiles", "mode", "name", "options", "recompile_limit",
    "shapes_spec",
}  # fmt: skip


def torch_compile(target: Any, options: dict[str, Any]) -> Any:
    """A function or module compiled by ``torch.compile``; nothing is compiled before it is called."""
    import torch

    _check_torch_target(target)
    _check_options(options, _COMPILE_OPTIONS)
    # torch takes entries out of the options that it is given.
    return torch.compile(target, **{name: dict(v) if type(v) is dict else v for name, v in options.items()})


def torch_disable(target: Any, options: dict[str, Any]) -> Any:
    """A function or module that ``torch.compile`` leaves alone."""
    import torch

    _check_torch_target(target)
    _check_options(options, {"recursive", "reason", "wrapping"})
    return torch._dynamo.disable(target, **options)


def torch_run_compiled(target: Any, options: dict[str, Any]) -> Any:
    """A function or module that runs what was compiled before and compiles nothing (``torch._dynamo.run``)."""
    import torch

    _check_torch_target(target)
    _check_options(options, set())
    return torch._dynamo.run(target)


def torch_compiler(kind: str, options: dict[str, Any]) -> Any:
    """What these functions compile with: torch keeps it in what it compiles, and calls it by no public name."""
    makers = {"torch_compile": torch_compile, "torch_disable": torch_disable, "torch_run_compiled": torch_run_compiled}
    if kind not in makers:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a way to compile")
    made = makers[kind](lambda: None, options)
    names = made.__code__.co_freevars
    return made.__closure__[names.index("self")].cell_contents


def torch_config_patch(module: str, changes: dict[str, Any]) -> Any:
    """A context manager that changes settings of a part of torch (``torch._dynamo.config.patch``)."""
    from torch.utils._config_module import ConfigModule

    _check(module, str, "a module name")
    _check(changes, dict, "settings")
    config = load(module)
    _check(config, ConfigModule, "a module of settings")
    return config.patch(changes)


def torch_compiled(module: str, qualname: str, path: tuple[str, ...]) -> types.FunctionType:
    """A compiled function by the name that leads to it."""
    found: types.FunctionType = _torch_named(module, qualname, path, types.FunctionType)
    if "_torchdynamo_orig_callable" not in found.__dict__:
        raise UnpicklingError(f"the reference {module}:{qualname} leads to a function that torch did not compile")
    return found


def _check_torch_target(target: Any) -> None:
    import torch

    if isinstance(target, type) or not callable(target):
        raise UnpicklingError(f"malformed pickle: torch compiles functions and modules, not {target!r}")
    if isinstance(target, torch.nn.Module) and "training" not in target.__dict__:
        target.__dict__["training"] = True  # it holds what is made of it: its own attributes come later


def _check_options(options: dict[str, Any], known: set[str]) -> None:
    _check(options, dict, "options")
    unknown = sorted(options.keys() - known)
    if unknown:
        raise UnpicklingError(f"malformed pickle: {unknown[0]!r} is no option of torch.compile")


def fill_torch_optimized_module(module: Any, state: dict[str, Any]) -> None:
    """Give a compiled module what it has besides the module in it: hooks."""
    from torch._dynamo.eval_frame import OptimizedModule

    _check(module, OptimizedModule, "a compiled module")
    _check(state, dict, "the attributes of a module")
    module.__dict__.update(state)
    _skip_torch_hook_ids(state)


def fill_torch_module(module: Any, state: dict[str, Any]) -> None:
    """Give a module its attributes, among them hooks; those that are registered later get other numbers."""
    import torch

    _check(module, torch.nn.Module, "a module")
    _check(state, dict, "the attributes of a module")
    module.__setstate__(state)
    _skip_torch_hook_ids(state)


# TorchScript. The archives are torch's own: code that its compiler reads, no Python pickle.


def torch_script_module(archive: bytes, operators: tuple[Any, ...] = ()) -> Any:
    """A scripted module from the archive that ``torch.jit.save`` writes; its tensors follow.

    ``operators``: those that the code calls and torch does not bring; they are registered once they are loaded.
    """
    module = _torch_archive(archive)
    for part in module.modules():
        for name in ("__len__", "__contains__"):  # torch forgets that Python looks for these on the type
            if part._c._has_method(name):
                part.__dict__[name] = part._c._get_method(name)
    return module


def fill_torch_script_module(module: Any, state: dict[str, Any]) -> None:
    """Give a scripted module its tensors, and its Python side what only that has."""
    import torch

    _check(module, torch.jit.ScriptModule, "a scripted module")
    _check(state, dict, "the attributes of a module")
    for path, name, value in state.get("tensors", ()):
        part = module._c
        for step in path:
            part = part.getattr(step)
        part.setattr(name, value)
    for path, attributes in state.get("python", ()):
        part = module
        for step in path:
            part = part.__dict__["_modules"][step]
        part.__dict__.update(attributes)


def torch_script_method(module: Any, name: str) -> Any:
    """The method of that name of a scripted module."""
    import torch

    _check(module, torch.jit.ScriptModule, "a scripted module")
    _check(name, str, "the name of a method")
    return module._c._get_method(name)


def torch_script_function(function: types.FunctionType, names: dict[str, Any]) -> Any:
    """A Python function, scripted; ``names``: globals that its text uses and its code does not."""
    import torch

    _check(function, types.FunctionType, "a function to script")
    _check(names, dict, "globals")
    for name, value in names.items():
        function.__globals__.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # whoever scripted it first was told
        return torch.jit.script(function)


def torch_traced_function(archive: bytes, name: str, operators: tuple[Any, ...] = ()) -> Any:
    """A scripted function from the archive of its graph."""
    import torch

    _check(name, str, "the name of a function")
    graph = _torch_archive(archive)._c._get_method("forward").graph.copy()
    graph.eraseInput(0)  # torch saves a function as the method of a module that it does not use
    return torch._C._create_function_from_graph(name, graph)


def torch_script_function_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A scripted function by the name that leads to it."""
    import torch

    return _torch_named(module, qualname, path, torch.jit.ScriptFunction)


def _torch_archive(archive: bytes) -> Any:

    import torch

    _check(archive, bytes, "an archive of TorchScript code")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(io.BytesIO(archive))


# Graphs. All nodes of a graph are made first, so that each can be an argument of any other.

#: Where a graph that is being loaded keeps its nodes.
TORCH_FX_NODES = "_safepickle_nodes"


#: The place of the node before the first, which is the one after the last too.
TORCH_FX_ROOT = -1


def torch_fx_graph(cls: Any, nodes: tuple[tuple[str, str], ...]) -> Any:
    """A graph with nodes of these kinds and names that do nothing yet."""
    import torch.fx

    _check_torch_class(cls, torch.fx.Graph)
    graph = cls()
    made = []
    for op, name in nodes:
        node = graph.create_node(op, callable if op == "call_function" else name, name=name)
        if node.name != name:
            node.name = name
        made.append(node)
    graph.__dict__[TORCH_FX_NODES] = made
    return graph


def fill_torch_fx_graph(graph: Any, state: dict[str, Any]) -> None:
    """Say what the nodes of a graph do, and with which others."""
    import torch.fx

    _check(graph, torch.fx.Graph, "a graph")
    _check(state, dict, "the state of a graph")
    for name, value in state["attributes"].items():
        graph.__dict__[name] = value
    nodes = graph.__dict__.pop(TORCH_FX_NODES)
    for node, (target, args, kwargs, kind, meta, attributes) in zip(nodes, state["nodes"], strict=True):
        node.target = target
        node.args = tuple(args)
        node.kwargs = kwargs
        node.type = kind
        node.meta = meta
        for name, value in attributes.items():
            setattr(node, name, value)


def torch_fx_node(graph: Any, place: int) -> Any:
    """The node at that place in a graph."""
    import torch.fx

    _check(graph, torch.fx.Graph, "a graph")
    _check(place, int, "the place of a node")
    if place == TORCH_FX_ROOT:
        return graph._root
    nodes = graph.__dict__.get(TORCH_FX_NODES)
    return (list(graph.nodes) if nodes is None else nodes)[place]


def torch_graph_module(cls: Any, name: str) -> Any:
    """A graph module without its attributes; as torch does, each gets a class of its own."""
    import torch.fx

    _check_torch_class(cls, torch.fx.GraphModule)
    _check(name, str, "the name of a class")
    module = cls.__new__(cls)
    type(module).__name__ = name
    return module


def fill_torch_graph_module(module: Any, state: dict[str, Any]) -> None:
    """Give a graph module its attributes and its graph, and generate its code."""
    import torch.fx

    _check(module, torch.fx.GraphModule, "a graph module")
    _check(state, dict, "the state of a graph module")
    module.__dict__.update(state["attributes"])
    module.graph = state["graph"]
    _skip_torch_hook_ids(state["attributes"])


def torch_fake_mode(fallback: bool, non_fake_inputs: bool) -> Any:
    """The mode that fake tensors belong to."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_fallback_kernels=bool(fallback), allow_non_fake_inputs=bool(non_fake_inputs))


def torch_fake_tensor(
    mode: Any, size: tuple[int, ...], stride: tuple[int, ...], dtype: Any, device: Any, requires_grad: bool,
    parameter: bool,
) -> Any:  # fmt: skip
    """A tensor without memory, of a mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    _check(mode, FakeTensorMode, "the mode of a fake tensor")
    with mode:
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def torch_exported_program(archive: bytes, operators: tuple[Any, ...] = ()) -> Any:
    """An exported program from the archive that ``torch.export.save`` writes; its tensors follow."""

    import torch.export

    _check(archive, bytes, "the archive of an exported program")
    return torch.export.load(io.BytesIO(archive))


def fill_torch_exported_program(program: Any, state: dict[str, Any]) -> None:
    """Give an exported program its tensors."""
    import torch.export

    _check(program, torch.export.ExportedProgram, "an exported program")
    _check(state, dict, "the tensors of a program")
    program._state_dict = dict(state["state_dict"])
    program._constants = {**program._constants, **state["constants"]}
    program._example_inputs = state["example_inputs"]


# Operators. Torch finds them by name in one table for the process.


def torch_operator(name: str, overload: str | None, definition: Any = None) -> Any:
    """An operator, or one of its overloads, by name; ``definition``: what defines it, or the module that does."""
    import torch

    _check(name, str, "the name of an operator")
    _check(overload, (str, type(None)), "the name of an overload")
    if isinstance(definition, str):
        load(definition)
    namespace, _, operator = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), operator)
        return packet if overload is None else getattr(packet, overload)
    except AttributeError as error:
        raise UnpicklingError(
            f"the operator {name} (overload {overload}) is not registered here: import the module or load the library "
            "that defines it first"
        ) from error


def torch_higher_order_operator(name: str, module: str) -> Any:
    """A higher-order operator by name, and the module that registers it."""
    import torch
    from torch._ops import HigherOrderOperator

    _check(name, str, "the name of an operator")
    _check(module, str, "a module name")
    load(module)
    found = getattr(torch.ops.higher_order, name, None)
    if not isinstance(found, HigherOrderOperator):
        raise UnpicklingError(f"the higher-order operator {name!r} is not registered here; it was in module {module!r}")
    return found


def torch_namespace(root: str, name: str | None) -> types.ModuleType:
    """``torch.ops`` or ``torch.classes``, or a namespace of theirs."""
    import torch

    if root not in ("ops", "classes"):
        raise UnpicklingError(f"malformed pickle: torch.{root} has no namespaces")
    found = getattr(torch, root)
    if name is not None:
        _check(name, str, "the name of a namespace")
        found = getattr(found, name)
    _check(found, types.ModuleType, "a namespace")
    return found  # type: ignore[no-any-return]


def torch_custom_op(name: str, function: Any, options: dict[str, Any], functions: dict[str, Any]) -> Any:
    """The custom operator of that name; one that the process lacks is registered."""
    import torch

    def make(arguments: dict[str, Any]) -> Any:
        kernels = functions.get("kernels", [])
        own = [device for device, kernel in kernels if kernel is function]
        devices = None if None in own or not own else own
        made = torch.library.custom_op(
            name, mutates_args=arguments["mutates_args"], schema=arguments["schema"], device_types=devices,
            **({"tags": [getattr(torch.Tag, tag) for tag in arguments["tags"]]} if "tags" in arguments else {}),
        )(function)  # fmt: skip
        for device, kernel in kernels:
            if kernel is not function:
                made.register_kernel(device, kernel)
        return made

    return _torch_custom_op(name, options, functions, make)


def torch_triton_op(name: str, function: Any, options: dict[str, Any], functions: dict[str, Any]) -> Any:
    """The same for an operator that ``torch.library.triton_op`` made."""
    import torch

    return _torch_custom_op(
        name, options, functions,
        lambda arguments: torch.library.triton_op(name, function, mutates_args=arguments["mutates_args"]),
    )  # fmt: skip


def _torch_custom_op(name: str, options: dict[str, Any], functions: dict[str, Any], make: Any) -> Any:
    from torch._library.custom_ops import OPDEFS

    _check(name, str, "the name of an operator")
    _check(options, dict, "options")
    _check(functions, dict, "functions")
    with identities.lock:
        known = OPDEFS.get(name)
        if known is not None:
            return known
        made = make(options)
        if "fake" in functions:
            made.register_fake(functions["fake"])
        if "backward" in functions:
            made.register_autograd(functions["backward"], setup_context=functions.get("setup_context"))
        if "vmap" in functions:
            made.register_vmap(functions["vmap"])
        for device, dtype in options.get("autocast", {}).items():
            made.register_autocast(device, dtype)
        return made


def torch_custom_op_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A custom operator by the name that leads to it."""
    from torch._library.custom_ops import CustomOpDef

    return _torch_named(module, qualname, path, CustomOpDef)
