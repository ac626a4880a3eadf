"""What does a pickle call when it is loaded?

Every function that ``safepickle.dumps`` writes a call to is here, and nothing else. They are small, check the types of their arguments,
never call what a name resolves to, and take no nested pickle. They are a file format: a function here is never renamed and its
arguments never change their meaning (``tests/golden`` keeps files of every release). Libraries are imported inside the functions.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import inspect
import linecache
import os
import sys
import threading
import types
import warnings
import weakref
from typing import Any

from .errors import UnpicklingError
from .references import load, static_vars, walk

__all__ = [
    "bind_method",
    "bound_classmethod",
    "builtin_type",
    "fill_cell",
    "fill_class",
    "fill_function",
    "fill_module",
    "function",
    "make_cell",
    "make_class",
    "make_code",
    "make_enum",
    "make_error",
    "make_function",
    "make_module",
    "make_namespace",
    "make_type_variable",
    "sentinel",
    "submodule",
    "torch_parameter",
    "torch_storage",
    "torch_tensor",
    "torch_typed_storage",
    "torch_uninitialized",
    "fill_torch_optimizer",
    "fill_torch_parametrized",
    "fill_torch_tensor",
    "torch_event",
    "torch_generator",
    "torch_parametrized",
    "torch_process_group",
    "torch_stream",
    "fill_torch_module",
    "fill_torch_optimized_module",
    "torch_compile",
    "torch_compiled",
    "torch_compiler",
    "torch_disable",
    "torch_run_compiled",
    "fill_torch_script_module",
    "torch_script_function",
    "torch_script_function_named",
    "torch_script_method",
    "torch_script_module",
    "torch_traced_function",
]


def _check(value: Any, kind: type | tuple[type, ...], what: str) -> None:
    if not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise UnpicklingError(f"malformed pickle: {what} must be {names}, not {type(value).__qualname__}")


# -- names -------------------------------------------------------------------------------------------------------------------


def resolve(module: str, qualname: str, path: tuple[str, ...] = ()) -> Any:
    """The object of that name. Not written to pickles itself: the functions below check what was found.

    Raises:
        UnpicklingError: there is no such module or no such name in it.
    """
    _check(module, str, "a module name")
    _check(qualname, str, "a qualified name")
    _check(path, tuple, "an attribute path")
    name = ".".join([f"{module}:{qualname}", *path])
    try:
        found = load(module)
    except ImportError as error:
        raise UnpicklingError(
            f"cannot load the reference {name}: module {module!r} cannot be imported here ({error}). It was importable "
            "where the pickle was written; a package may have extended sys.path there"
        ) from error
    try:
        return walk(found, qualname, path)
    except AttributeError as error:
        raise UnpicklingError(
            f"cannot load the reference {name}: {error}. The module is {getattr(found, '__file__', 'built in')}; "
            "the name may be defined there only under some condition, or in another version"
        ) from error


def function(module: str, qualname: str, path: tuple[str, ...]) -> types.FunctionType:
    """The undecorated Python function below the object that took its name: ``kernel.fn``, ``step.python_function``, ``f.__wrapped__``."""
    found = resolve(module, qualname, path)
    if not path or type(found) is not types.FunctionType:
        raise UnpicklingError(
            f"the reference {module}:{qualname} with path {path!r} leads to a {type(found).__qualname__}, not to a function below "
            "a decorated one"
        )
    return found


def bound_classmethod(cls: type, name: str) -> types.MethodType:
    """The class method ``name`` bound to ``cls``."""
    _check(cls, type, "the owner of a class method")
    _check(name, str, "a method name")
    found = getattr(cls, name, None)
    if not isinstance(found, types.MethodType) or found.__self__ is not cls:
        raise UnpicklingError(f"{cls.__qualname__}.{name} is not a class method")
    return found


def submodule(name: str) -> types.ModuleType:
    """A module by name, imported."""
    _check(name, str, "a module name")
    return importlib.import_module(name)


def sentinel(module: str, qualname: str) -> Any:
    """A private marker object of the standard library that is compared by identity (``dataclasses._FIELD``)."""
    if (module, qualname) not in _SENTINELS:
        raise UnpicklingError(f"{module}:{qualname} is not a known marker")
    return resolve(module, qualname)


_SENTINELS = {
    ("dataclasses", "_FIELD"),
    ("dataclasses", "_FIELD_CLASSVAR"),
    ("dataclasses", "_FIELD_INITVAR"),
    ("dataclasses", "_HAS_DEFAULT_FACTORY"),
    ("dataclasses", "MISSING"),
    ("dataclasses", "KW_ONLY"),
}


# -- source text of functions that travel by value ------------------------------------------------------------------------------


def source_file(function: types.FunctionType, text: str, first_line: int) -> str:
    """The name of the file that a function by value comes from: made from its text, so that equal texts are one file."""
    digest = hashlib.sha256(f"{first_line}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"<safepickle {function.__qualname__.rpartition('.')[2].strip('<>')} {digest}>"


def renamed(code: types.CodeType, filename: str) -> types.CodeType:
    """The code, and the code inside it, as if it came from that file."""
    constants = tuple(renamed(c, filename) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def register_source(filename: str, text: str, first_line: int) -> None:
    """Make the text known to ``linecache``, so that ``inspect.getsource``, tracebacks and ``@triton.jit`` find it."""
    if filename in linecache.cache:
        return
    # Blank lines in front keep the original line numbers; a modification time of None survives linecache.checkcache.
    lines = ["\n"] * (first_line - 1) + text.splitlines(keepends=True)
    linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)


# -- functions and code by value --------------------------------------------------------------------------------------------------


def make_code(tag: str, *arguments: Any) -> types.CodeType:
    """A code object, if it was written by this very version of Python: byte code of another one crashes the interpreter."""
    here = sys.implementation.cache_tag
    if tag != here:
        raise UnpicklingError(
            f"this pickle holds a function by value, which was written by Python {_readable(tag)} and cannot run under "
            f"Python {_readable(str(here))}: load it with the former, or put the function into a module so that it goes by reference"
        )
    return types.CodeType(*arguments)


def _readable(tag: str) -> str:
    name, _, digits = tag.partition("-")
    version = f"{digits[0]}.{digits[1:]}" if digits.isdigit() else digits
    return f"{version} ({name})" if name != "cpython" else version


def make_namespace(name: str | None, package: str | None) -> dict[str, Any]:
    """The globals of functions that came from one module, to be filled with those that they use."""
    return {"__name__": name, "__package__": package, "__builtins__": builtins}


def make_cell() -> types.CellType:
    """An empty cell; :func:`fill_cell` or :func:`fill_function` puts the value in."""
    return types.CellType()


def fill_cell(cell: types.CellType, value: tuple[Any, ...]) -> None:
    """Put the value into a cell."""
    _check(cell, types.CellType, "a cell")
    if value:
        cell.cell_contents = value[0]


#: The attribute of what is made and not filled yet: a list of what waits until it is.
_UNFINISHED = "__safepickle_unfinished__"


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    closure: tuple[types.CellType, ...] | None,
    source: tuple[str, str, int] | None,
    owner: str | None = None,
) -> types.FunctionType:
    """A function with its code, an empty closure and no attributes; :func:`fill_function` brings the rest.

    Where the kernel of identity ``owner`` lives here, it is the function of that kernel.
    """
    _check(code, types.CodeType, "code")
    _check(namespace, dict, "a namespace")
    living = None if owner is None else static_vars(identities.object_of(owner)).get("fn")
    if type(living) is types.FunctionType:
        return living
    if source is not None:
        register_source(*source)
    made = types.FunctionType(code, namespace, name, None, closure)
    made.__dict__[_UNFINISHED] = []
    return made


def fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    """Give a function its globals, cell contents, defaults and attributes, unless it has them."""
    _check(function, types.FunctionType, "a function")
    waiting = function.__dict__.pop(_UNFINISHED, None)
    if waiting is None:
        return
    for name, value in state.pop("globals").items():
        function.__globals__.setdefault(name, value)
    for cell, value in state.pop("cells"):
        cell.cell_contents = value
    state.pop("modules", None)
    for name, value in state.pop("vars", {}).items():
        function.__dict__[name] = value
    for name, value in state.items():
        setattr(function, _FUNCTION_STATE[name], value)
    for finish in waiting:
        finish()


_FUNCTION_STATE = {
    name: f"__{name}__" for name in ("qualname", "module", "doc", "defaults", "kwdefaults", "annotations", "type_params")
}


# -- objects by value that must stay one object --------------------------------------------------------------------------------------


class Identities:
    """Which living object has this identity, and which identity has this object?

    An identity is made from content, never at random, so that equal programs write equal bytes. Loading what this process
    knows gives the living object: the class at home, the kernel that is compiled already. Nothing is kept alive or hashed.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.lock = threading.RLock()

    def object_of(self, identity: str) -> Any | None:
        """The living object of that identity."""
        return self._objects.get(identity)

    def identity_of(self, obj: Any) -> str | None:
        """The identity under which the object was pickled or loaded here before."""
        entry = self._names.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else None

    def remember(self, obj: Any, identity: str) -> str:
        """Give an object its identity; one that is taken by another living object gets a number behind it."""
        with self.lock:
            number, unique = 0, identity
            while self._objects.get(unique, obj) is not obj:
                number += 1
                unique = f"{identity}-{number}"
            key, names = id(obj), self._names
            self._objects[unique] = obj
            names[key] = (weakref.ref(obj, lambda _: names.pop(key, None)), unique)
            return unique


#: Classes, type variables, kernels and compiled functions that travelled by value.
identities = Identities()

_filled: weakref.WeakSet[type] = weakref.WeakSet()


def mark_complete(cls: type) -> None:
    """This class has its attributes: loading it must not set them again."""
    _filled.add(cls)


def make_class(
    identity: str, metaclass: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
) -> type:
    """The class of that identity if this process knows it, else a new one without its attributes."""
    _check(identity, str, "the identity of a class")
    _check(metaclass, type, "a metaclass")
    with identities.lock:
        known = identities.object_of(identity)
        if isinstance(known, type):
            return known
        made: type = types.new_class(name, bases, {"metaclass": metaclass}, lambda body: body.update(namespace))
        identities.remember(made, identity)
        return made


def make_enum(
    identity: str, metaclass: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any],
    members: list[tuple[str, Any]], options: dict[str, Any],
) -> type:  # fmt: skip
    """The enumeration of that identity, with its members."""
    import enum

    _check(identity, str, "the identity of a class")
    if not (isinstance(metaclass, type) and issubclass(metaclass, enum.EnumMeta)):
        raise UnpicklingError(f"malformed pickle: {metaclass!r} is not the type of an enumeration")
    with identities.lock:
        known = identities.object_of(identity)
        if isinstance(known, type):
            return known
        body: Any = metaclass.__prepare__(name, bases, **options)
        for key, value in [*namespace.items(), *members]:
            body[key] = value
        made: type = metaclass.__new__(metaclass, name, bases, body, **options)
        identities.remember(made, identity)
        return made


def fill_class(cls: type, state: dict[str, Any]) -> None:
    """Give a class its attributes, unless it has them: a class that lives here keeps the state it has."""
    _check(cls, type, "a class")
    with identities.lock:
        if cls in _filled:
            return
        _filled.add(cls)
    for name, value in state["attributes"].items():
        type.__setattr__(cls, name, value)
    for name, attributes in state.get("members", {}).items():
        cls.__members__[name].__dict__.update(attributes)  # type: ignore[attr-defined]
    for subclass in state.get("registered", ()):
        cls.register(subclass)  # type: ignore[attr-defined]
    abstract = state.get("abstract")
    if abstract is not None:
        cls.__abstractmethods__ = frozenset(abstract)  # type: ignore[attr-defined]


def make_module(name: str, doc: str | None) -> types.ModuleType:
    """A module that was made on the fly, empty; its state follows."""
    _check(name, str, "a module name")
    module = types.ModuleType(name, doc)
    module.__dict__["__builtins__"] = builtins
    return module


def fill_module(module: types.ModuleType, state: dict[str, Any]) -> None:
    """Give a module its contents."""
    _check(module, types.ModuleType, "a module")
    module.__dict__.update(state)


def make_type_variable(identity: str, kind: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A type variable; the one of that identity if this process knows it."""
    import typing

    if kind not in ("TypeVar", "ParamSpec", "TypeVarTuple"):
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of type variable")
    with identities.lock:
        known = identities.object_of(identity)
        if known is None:
            known = getattr(typing, kind)(name, *arguments, **options)
            known.__module__ = identity.partition(":")[0]
            identities.remember(known, identity)
        return known


# -- types and methods without a name of their own ------------------------------------------------------------------------------------


def builtin_type(name: str) -> type:
    """A type of the interpreter that only the module ``types`` names (``types.FunctionType``)."""
    _check(name, str, "the name of a type")
    found = getattr(types, name, None)
    if not isinstance(found, type):
        raise UnpicklingError(f"types.{name} is not a type of this Python")
    return found


def bind_method(function: Any, owner: Any) -> types.MethodType:
    """A function bound to an object that does not have it as an attribute of that name."""
    if not callable(function):
        raise UnpicklingError(f"malformed pickle: a method needs a callable, not {type(function).__qualname__}")
    return types.MethodType(function, owner)


# -- torch: tensors and storages ------------------------------------------------------------------------------------------------------

#: From this size on a buffer that can be written to becomes a tensor's memory as it is; smaller ones are copied into memory of torch's own,
#: which can be resized and is better aligned.
TORCH_ADOPT_FROM = 1 << 20


def torch_tensor(
    cls: Any, data: Any, dtype: Any, size: tuple[int, ...], requires_grad: bool = False, stride: tuple[int, ...] | None = None,
    offset: int = 0, options: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """A tensor or parameter on the bytes ``data``, or on the memory of the tensor or storage ``data``.

    ``stride``: contiguous unless given. ``options``: ``"device"``, ``"byteorder"`` of the bytes, and ``"conj"``, ``"neg"``.
    """
    import torch

    _check_torch_class(cls, torch.Tensor)
    _check(dtype, torch.dtype, "the type of a tensor's elements")
    _check(size, tuple, "the size of a tensor")
    options = options or {}
    if isinstance(data, torch.Tensor):
        storage = data.untyped_storage()
    elif isinstance(data, torch.UntypedStorage):
        storage = data
    else:
        storage = _torch_place(_torch_memory(data), options, dtype)
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    with torch.no_grad():
        tensor.set_(storage, offset, size, _contiguous(size) if stride is None else stride)
    marks = {name: True for name in ("conj", "neg") if options.get(name)}
    if marks:
        torch._utils.set_tensor_metadata(tensor, marks)
    if cls is not torch.Tensor:
        return torch.Tensor._make_subclass(cls, tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def torch_parameter(cls: Any, data: Any, requires_grad: bool) -> Any:
    """A parameter of a layout that is no plain memory (sparse, quantized, ...)."""
    import torch

    _check_torch_class(cls, torch.Tensor)
    _check(data, torch.Tensor, "the data of a parameter")
    return torch.Tensor._make_subclass(cls, data, requires_grad)


def torch_uninitialized(cls: Any, requires_grad: bool, device: str, dtype: Any) -> Any:
    """A parameter or buffer of a lazy module that has no shape yet."""
    import torch

    _check_torch_class(cls, torch.nn.parameter.UninitializedTensorMixin)
    return cls(requires_grad=requires_grad, device=device, dtype=dtype)


def fill_torch_tensor(tensor: Any, state: dict[str, Any]) -> None:
    """Give a tensor its attributes, its gradient and its hooks."""
    import torch

    _check(tensor, torch.Tensor, "a tensor")
    tensor.__dict__.update(state.get("attributes", {}))
    for name, value in state.get("slots", {}).items():
        setattr(tensor, name, value)
    if "grad" in state:
        tensor.grad = state["grad"]
    handles = torch.utils.hooks.RemovableHandle
    for key, name in (("hooks", "_backward_hooks"), ("after_grad", "_post_accumulate_grad_hooks")):
        if state.get(key):
            setattr(tensor, name, state[key])
            # A hook that is registered from now on must not take the number of one of these.
            handles.next_id = max(handles.next_id, 1 + max(state[key]))


def torch_storage(data: Any, options: dict[str, Any] | None = None) -> Any:
    """A storage of the bytes ``data``, or that of the tensor ``data``; a number of bytes where there is no memory (``"meta"``)."""
    import torch

    if isinstance(data, torch.Tensor):
        return data.untyped_storage()
    options = options or {}
    if isinstance(data, int):
        return torch.UntypedStorage(data, device="meta")
    return _torch_place(_torch_memory(data), options, None)


def torch_typed_storage(storage: Any, dtype: Any) -> Any:
    """A typed storage on an untyped one."""
    import torch

    _check(storage, torch.UntypedStorage, "a storage")
    _check(dtype, torch.dtype, "the type of a storage's elements")
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _check_torch_class(cls: Any, base: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise UnpicklingError(f"malformed pickle: {cls!r} is not a kind of {base.__qualname__}")


def _contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _torch_memory(data: Any) -> Any:
    """A storage on the CPU with those bytes. A buffer that is read-only is never written through, so it is copied."""
    import ctypes

    import torch

    view = memoryview(data)
    size = view.nbytes
    if size and not view.readonly:
        flat = torch.frombuffer(view.cast("B"), dtype=torch.uint8)
        if size < TORCH_ADOPT_FROM or flat.data_ptr() % 16:
            flat = flat.clone()
        return flat.untyped_storage()
    storage = torch.UntypedStorage(size, device="cpu")
    if size:
        ctypes.memmove(storage.data_ptr(), data if isinstance(data, bytes) else view.tobytes(), size)
    return storage


def _torch_place(storage: Any, options: dict[str, Any], dtype: Any) -> Any:
    """The storage in the byte order of this machine, on the device that the original was on."""
    import torch

    if dtype is not None and options.get("byteorder", "little") != sys.byteorder:
        storage.byteswap(dtype)
    device = options.get("device")
    if device is None:
        return storage
    _check(device, str, "the name of a device")
    try:
        return torch.serialization.default_restore_location(storage, device)
    except RuntimeError as error:
        raise UnpicklingError(f"this pickle holds a tensor that was on the device {device!r}, which is not here: {error}") from error


# -- PyTorch: code ---------------------------------------------------------------------------------------------------------

_COMPILE_OPTIONS = {
    "backend", "dynamic", "fullgraph", "isolate_recompiles", "mode", "name", "options", "recompile_limit", "shapes_spec",
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


def torch_compiled(module: str, qualname: str, path: tuple[str, ...]) -> types.FunctionType:
    """A compiled function by the name that leads to it."""
    found = resolve(module, qualname, path)
    if type(found) is not types.FunctionType or "_torchdynamo_orig_callable" not in found.__dict__:
        raise UnpicklingError(
            f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to a {type(found).__qualname__}, "
            "not to a function that torch compiled"
        )
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


def _skip_torch_hook_ids(state: dict[str, Any]) -> None:
    """A process numbers its hooks from zero: one that is registered later must not take the place of a restored one."""
    from torch.utils.hooks import RemovableHandle

    for name, hooks in state.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            for number in hooks:
                if isinstance(number, int) and number >= RemovableHandle.next_id:
                    RemovableHandle.next_id = number + 1


# -- triton: kernels, launchers, configurations ---------------------------------------------------------------------------------------


def kernel(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """The kernel of that name; nothing else is returned, whatever the name leads to.

    Raises:
        UnpicklingError: the name leads nowhere, or to something that is no kernel.
    """
    found = resolve(module, qualname, path)
    _check_kernel(found, f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to")
    return found


def _check_kernel(found: Any, what: str) -> None:
    if not isinstance(found, _kernel_types()):
        raise UnpicklingError(f"{what} an object of type {type(found).__module__}.{type(found).__qualname__}, which is no Triton kernel")


def _kernel_types() -> tuple[type, ...]:
    from triton.runtime import jit

    names = (jit.KernelInterface, jit.JITFunction, getattr(jit, "JITCallable", None), _interpreted() if _interpreting() else None)
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
    bound = getattr(found, "__self__", None) is kernel or (found is not None and static_vars(kernel).get(name) is found)
    if not bound or not callable(found):
        raise UnpicklingError(f"{type(kernel).__qualname__} has no method {name!r} here")
    return found


def make_kernel(identity: str, kind: str) -> Any:
    """The kernel of that identity if it lives here, else an empty one, for :func:`fill_kernel` to fill.

    It exists before its parts, so that a part may lead back to it: a kernel that calls itself through its own tuned wrapper.
    """
    _check(identity, str, "the identity of a kernel")
    known = identities.object_of(identity)
    if known is not None and isinstance(known, _kernel_types()):
        return known
    cls = _kernel_class(kind)
    made = cls.__new__(cls)
    made.__dict__[_UNFINISHED] = []
    return made


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
        raise UnpicklingError(f"Triton {_triton_version()} has no kernels of kind {kind!r}; the pickle is from another version")
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
    """Run the constructor of a kernel, once the function or kernel that it wraps is complete; a kernel that lives here stays as it is.

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
    """The text and line of the original, where the constructor found others: the key of compiled kernels is made from them."""
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
    import warnings

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


# -- errors ----------------------------------------------------------------------------------------------------------------------------


def make_error(kind: str, original: type, message: str, attributes: dict[str, Any]) -> Exception:
    """An error of this package that is also of the type of another error, as process pools send it back."""
    from . import errors

    kinds: dict[str, type[Exception]] = {
        "PicklingError": errors.PicklingError,
        "CopyError": errors.CopyError,
        "UnpicklingError": errors.UnpicklingError,
    }
    if kind not in kinds:
        raise UnpicklingError(f"malformed pickle: {kind!r} is not a kind of error")
    if not (isinstance(original, type) and issubclass(original, Exception)):
        raise UnpicklingError(f"malformed pickle: {original!r} is not a type of error")
    _check(message, str, "a message")
    _check(attributes, dict, "the attributes of an error")
    return errors.combined_by_type(kinds[kind], original, message, attributes)


# TorchScript. The archives are torch's own: code that its compiler reads, no Python pickle.


def torch_script_module(archive: bytes) -> Any:
    """A scripted module from the archive that ``torch.jit.save`` writes; its tensors follow."""
    return _torch_archive(archive)


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
        for name, value in attributes.items():
            if name in ("_forward_hooks", "_forward_pre_hooks"):
                part.__dict__[name].update(value)
            else:
                part.__dict__[name] = value
        _skip_torch_hook_ids(attributes)


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


def torch_traced_function(archive: bytes, name: str) -> Any:
    """A scripted function from the archive of its graph."""
    import torch

    _check(name, str, "the name of a function")
    graph = _torch_archive(archive)._c._get_method("forward").graph.copy()
    graph.eraseInput(0)  # torch saves a function as the method of a module that it does not use
    return torch._C._create_function_from_graph(name, graph)


def torch_script_function_named(module: str, qualname: str, path: tuple[str, ...]) -> Any:
    """A scripted function by the name that leads to it."""
    import torch

    found = resolve(module, qualname, path)
    if not isinstance(found, torch.jit.ScriptFunction):
        raise UnpicklingError(
            f"the reference {'.'.join([f'{module}:{qualname}', *path])} leads to a {type(found).__qualname__}, "
            "not to a scripted function"
        )
    return found


def _torch_archive(archive: bytes) -> Any:
    import io

    import torch

    _check(archive, bytes, "an archive of TorchScript code")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(io.BytesIO(archive))


# -- torch: what is around tensors ---------------------------------------------------------------------------------------------------


def torch_parametrized(base: type) -> Any:
    """A module, still empty, of a class that can be parametrized; its state follows."""
    import torch
    from torch.nn.utils import parametrize

    _check_torch_class(base, torch.nn.Module)
    module = base.__new__(base)
    parametrize._inject_new_class(module)
    return module


def fill_torch_parametrized(module: Any, state: dict[str, Any]) -> None:
    """Give a parametrized module its state, and its class the properties that compute its tensors."""
    import torch
    from torch.nn.utils import parametrize

    _check(module, torch.nn.Module, "a module")
    module.__setstate__(state)
    for name in module.__dict__["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)


def fill_torch_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Give an optimizer its state, and note its steps for a learning rate scheduler, as that does when it is made."""
    import functools

    import torch

    _check(optimizer, torch.optim.Optimizer, "an optimizer")
    optimizer.__setstate__(state)
    step, me = type(optimizer).step, weakref.ref(optimizer)

    @functools.wraps(step)
    def noted(*args: Any, **kwargs: Any) -> Any:
        this = me()
        this._opt_called = True
        return step(this, *args, **kwargs)

    noted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = noted


def torch_stream(cls: Any, device: str, priority: int, is_default: bool) -> Any:
    """A stream of that device and priority, or the default stream of the device."""
    import torch

    _check(cls, type, "the class of a stream")
    if not issubclass(cls, (torch.Stream, torch.cuda.Stream)):
        raise UnpicklingError(f"malformed pickle: {cls.__qualname__} is no kind of stream")
    place = torch.device(device)
    if not is_default:
        return cls(device=place) if priority == 0 else cls(device=place, priority=priority)
    if issubclass(cls, torch.cuda.Stream):
        return torch.cuda.default_stream(place)
    known = torch.Stream(device=place)  # tells the numbers of the device
    return cls(stream_id=0, device_index=known.device_index, device_type=known.device_type)


def torch_event(cls: Any, device: str | None) -> Any:
    """An event of that device that has not been recorded; it can take times, as the original may have been able to."""
    import torch

    _check(cls, type, "the class of an event")
    if not issubclass(cls, (torch.Event, torch.cuda.Event)):
        raise UnpicklingError(f"malformed pickle: {cls.__qualname__} is no kind of event")
    if device is None or issubclass(cls, torch.cuda.Event):
        return cls(enable_timing=True)
    return cls(device=torch.device(device), enable_timing=True)


def torch_generator(device: str, state: Any) -> Any:
    """A generator that continues from that state."""
    import torch

    _check(state, torch.Tensor, "the state of a generator")
    generator = torch.Generator(device=device)
    generator.set_state(state)
    return generator


def torch_process_group(name: str, ranks: tuple[int, ...]) -> Any:
    """The process group of this process that has that name, or else those ranks.

    Raises:
        UnpicklingError: there is none, or more than one.
    """
    import torch.distributed as distributed

    what = f"the process group {name!r} of ranks {list(ranks)}"
    if not distributed.is_available() or not distributed.is_initialized():
        raise UnpicklingError(f"{what} is not here: call torch.distributed.init_process_group before loading")
    groups = list(distributed.distributed_c10d._world.pg_map)
    same = [group for group in groups if tuple(distributed.get_process_group_ranks(group)) == tuple(ranks)]
    named = [group for group in same if group.group_name == name]
    found = named or same
    if len(found) != 1:
        count = "more than one group has" if found else "no group has"
        raise UnpicklingError(f"{what} is not here: {count} these ranks; make it with torch.distributed.new_group before loading")
    return found[0]
