"""Rules for TorchScript: functions and modules that were scripted or traced.

- scripted and traced modules: the code as the archive that ``torch.jit.save`` writes, without weights; parameters and
  buffers beside it, as tensors like all others: they stay the tensors that an optimizer or another module holds
- scripted functions: by name, else scripted again from the Python function; traced ones as an archive
- ignored methods and attributes that only the Python side of a scripted module has: kept
"""

from __future__ import annotations

import ast
import copy
import hashlib
import io
import re
import textwrap
import types
import zipfile
from collections.abc import Generator, Iterator
from typing import Any, Final

import torch

from .. import restore, sources
from ..copier import deepcopy
from ..errors import PicklingError
from ..references import find, find_stand_in, static_vars
from ..registry import SHARE, Registry
from .torch_ops import custom_packets

__all__ = ["add_rules"]

ORIGIN: Final = __name__

Memo = dict[Any, Any]
Path = tuple[str, ...]


def add_rules(registry: Registry) -> None:
    """Enter the rules into the registry of built-in rules."""
    registry.add(torch.jit.RecursiveScriptModule, reduce_script_module, copy=copy_script_module, shallow=copy.copy,
                 with_pickler=True, origin=ORIGIN,
                 summary=("torch's archive of the code, tensors beside it", "independent, of leaves"))  # fmt: skip
    registry.add(torch.jit.ScriptModule, copy=copy_delegating, subclasses=True, origin=ORIGIN,
                 summary=("as torch does", "with a copy of the module that it wraps"))  # fmt: skip
    registry.add(torch._C.ScriptMethod, reduce_script_method, with_pickler=True, shallow=SHARE, origin=ORIGIN,
                 summary=("its module and its name", "of the copy of its module"))  # fmt: skip
    registry.add(torch.jit.ScriptFunction, reduce_script_function, copy=SHARE, with_pickler=True, origin=ORIGIN,
                 summary=("by name, else scripted again; a traced one as torch's archive", "shared"))  # fmt: skip


# -- modules -----------------------------------------------------------------------------------------------------------


def _attribute_names(module: Any) -> list[str]:
    """The attributes of a C++ module, without its modules, in a stable order."""
    return sorted(torch._C.ConcreteModuleType.from_jit_type(module._type()).get_attributes())


def _submodules(module: Any) -> dict[str, Any]:
    return dict(torch._C.ModuleDict(module).items())


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    return isinstance(value, (list, tuple)) and any(map(_holds_tensors, value))


def _without_tensors(module: Any, path: Path, taken: list[tuple[Path, str, Any]]) -> Any:
    """A C++ module of the same types with empty tensors; what has tensors in it is put into ``taken``.

    A module with a ``__getstate__`` of its own says itself how it is saved, and is left as it is.
    """
    if module._has_method("__getstate__"):
        return module
    bare = copy.copy(module)
    for name, inner in _submodules(module).items():
        bare.setattr(name, _without_tensors(inner, (*path, name), taken))
    for name in _attribute_names(module):
        value = module.getattr(name)
        if isinstance(value, torch.Tensor):
            bare.setattr(name, torch.empty(0))
        if _holds_tensors(value):
            taken.append((path, name, value))
    return bare


def _wrappers(module: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """A scripted module and those in it, as Python sees them."""
    module = static_vars(module).get("_actual_script_module", module)  # a traced one wraps a scripted one
    yield path, module
    for name, inner in static_vars(module)["_modules"].items():
        yield from _wrappers(inner, (*path, name))


#: What torch gives the Python side of every scripted module; hooks cannot be added to one.
_WRAPPER_ATTRIBUTES: Final = frozenset(
    {
        "_initializing", "_c", "_parameters", "_buffers", "_modules", "_concrete_type", "_non_persistent_buffers_set",
        "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook", "_forward_hooks",
        "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)  # fmt: skip


def _python_side(module: Any, *, containers: bool = False) -> dict[str, Any]:
    """What only the Python wrapper has: attributes that somebody set, and ignored methods.

    Args:
        module: a scripted module.
        containers: also how a container is indexed, which torch leaves to the module that was scripted.
    """
    return {
        name: value
        for name, value in static_vars(module).items()
        if name not in _WRAPPER_ATTRIBUTES
        and not isinstance(value, (torch._C.ScriptMethod, property))
        and (containers or not (name.startswith("__") and isinstance(value, types.MethodType)))
    }


def reduce_script_module(module: Any, pickler: Any) -> tuple[Any, ...]:
    """The archive of the code; tensors and what only Python knows are filled in."""
    _refuse_converted(module)
    taken: list[tuple[Path, str, Any]] = []
    bare = _without_tensors(module._c, (), taken)
    tensors = [entry for entry in taken if isinstance(entry[2], torch.Tensor)]
    state: dict[str, Any] = {"tensors": tensors} if tensors else {}
    python = [(path, own) for path, wrapper in _wrappers(module) if (own := _python_side(wrapper))]
    if python:
        state["python"] = python
    made = (restore.torch_script_module, (_archive(bare, module), *_custom_operators(module._c)))
    return (*made, state, None, None, restore.fill_torch_script_module) if state else made


def _refuse_converted(module: Any) -> None:
    """Stop at code with weights in the layout of a CPU library: torch writes it without them, and crashes on a look."""
    for _, wrapper in _wrappers(module):
        for name in wrapper._c._method_names():
            if wrapper._c._get_method(name).graph.findAllNodes("prim::ConstantMKLDNNTensor"):
                raise PicklingError(
                    f"cannot pickle a scripted {getattr(module, 'original_name', 'module')}: torch cannot save what "
                    "torch.jit.optimize_for_inference has converted for this machine. Pickle the module that it was "
                    "made from, and optimize what is loaded"
                )


def _custom_operators(cpp_module: Any) -> list[Any]:
    """The operators that the code calls and torch does not bring, as an argument, if there are any."""
    packets = custom_packets(torch._C._export_opnames(cpp_module))
    return [packets] if packets else []


def _archive(cpp_module: Any, module: Any) -> bytes:
    try:
        return _in_stable_order(bytes(cpp_module.save_to_buffer()))
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise PicklingError(
            f"cannot pickle a scripted {getattr(module, 'original_name', 'function')}: torch cannot save its code "
            f"({reason}). Pickle the module that it was scripted from"
        ) from error


_CONSTANTS: Final = re.compile(rb"(?:^  \w+ : Final\[.*\n)+", re.MULTILINE)


def _in_stable_order(archive: bytes) -> bytes:
    """The archive with the constants of each class sorted: torch writes them in the order of a set.

    Nothing moves but the lines of neighbouring constants: what is said elsewhere about places in the text stays true.
    """
    source = zipfile.ZipFile(io.BytesIO(archive))
    texts = {name: source.read(name) for name in source.namelist() if name.endswith(".py")}
    if not any(map(_CONSTANTS.search, texts.values())):
        return archive
    sink, digest = io.BytesIO(), hashlib.sha256()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            name = entry.filename
            data = _CONSTANTS.sub(_sorted_lines, texts[name]) if name in texts else source.read(entry)
            if name.endswith("/.data/serialization_id"):
                data = str(int.from_bytes(digest.digest()[:16], "big")).encode()  # torch makes it of the content too
            digest.update(data)
            target.writestr(zipfile.ZipInfo(name), data, entry.compress_type)
    return sink.getvalue()


def _sorted_lines(match: re.Match[bytes]) -> bytes:
    return b"".join(sorted(match[0].splitlines(keepends=True)))


def copy_script_module(module: Any, memo: Memo) -> Any:
    """An independent module: torch's own copy of the code, and copies of the tensors, leaves as the originals are."""
    taken: list[tuple[Path, str, Any]] = []
    bare = _without_tensors(module._c, (), taken)
    copied = torch.jit._recursive.wrap_cpp_module(copy.deepcopy(bare))
    for (_, old), (_, new) in zip(_wrappers(module), _wrappers(copied), strict=True):
        memo[id(old)] = new
    restore.fill_torch_script_module(copied, {"tensors": deepcopy(taken, memo)})
    for path, wrapper in _wrappers(module):
        own = _python_side(wrapper, containers=True)
        if own:
            restore.fill_torch_script_module(copied, {"python": [(path, deepcopy(own, memo))]})
    return copied


def copy_delegating(module: Any, memo: Memo) -> Generator[Any, Any, Any]:
    """A traced module, or one of a class with ``script_method``: it asks the module that it wraps how it is copied."""
    attributes = static_vars(module)
    if "_actual_script_module" not in attributes:
        return NotImplemented
    cls: Any = type(module)
    twin = memo[id(module)] = cls.__new__(cls)
    twin.__dict__.update((yield attributes))
    return twin


def reduce_script_method(method: Any, pickler: Any) -> tuple[Any, ...]:
    """The module and the name of the method."""
    wrapper = torch.jit._recursive.wrap_cpp_module(method.owner)
    if pickler is not None:
        pickler.by_value.keep(wrapper)
    return restore.torch_script_method, (wrapper, method.name)


# -- functions ---------------------------------------------------------------------------------------------------------


def reduce_script_function(function: Any, pickler: Any) -> tuple[Any, ...]:
    """By name, else what it was scripted from, else the archive of its graph."""
    reference = find_stand_in(function) or find(function)
    if reference is not None:
        return restore.torch_script_function_named, tuple(reference)
    attributes = static_vars(function)
    python = attributes.get("_torchdynamo_inline")
    # torch leaves the Python function on traced ones too, and names only the scripted ones.
    if "__qualname__" in attributes and isinstance(python, types.FunctionType):
        text = sources.source_of(python)
        if text is not None:
            return restore.torch_script_function, (python, _globals_in(text[0], python))
    archive = _archive(function, function)
    operators = _custom_operators(restore.torch_script_module(archive)._c)
    return restore.torch_traced_function, (archive, function.name, *operators)


def _globals_in(text: str, function: types.FunctionType) -> dict[str, Any]:
    """The globals that the text names and the code does not: TorchScript reads annotations of local variables."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return {}
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
    known = set(sources.global_names(function.__code__))
    return {name: function.__globals__[name] for name in names if name in function.__globals__ and name not in known}
