"""How is the way from the root to a part written down?

In Python syntax, as one would type it: ``obj.layers[3].cache['log']._file``. Wherever the way goes along attributes,
items, closures, globals and defaults the text can be evaluated and leads to the part. Functions and classes that travel
by value, and reduce values, have their parts shown as what they are in the object and not as the tuples that are
pickled.
"""

from __future__ import annotations

import builtins
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from . import restore
from .paths import CONTAINERS, Node, slots_of
from .references import static_vars

__all__ = ["ROOT", "Segment", "join", "notes_of", "path_of", "repetition", "segments", "shown_parts"]

ROOT: Final = "obj"

#: Paths with more steps than this are shortened.
MOST_STEPS: Final = 24


class Segment(NamedTuple):
    """One step of a path as text.

    Attributes:
        after: what stands behind the path so far.
        before: what stands in front of it.
        holder: the object that the step starts from.
        attribute: the name, where the step is an entry of the holder's ``__dict__``.
        note: what is worth a line of its own.
        key: the key, where the step is an item of a dict.
    """

    after: str
    before: str = ""
    holder: Any = None
    attribute: str | None = None
    note: str | None = None
    key: Any = None


def path_of(node: Node) -> str:
    """The path to a node."""
    return join(segments(node.chain()))


def segments(chain: list[Node]) -> list[Segment]:
    """The steps from the first node of a chain to the last."""
    found: list[Segment] = []
    position = 0
    while position < len(chain) - 1:
        segment, used = _segment(chain, position)
        found.append(segment)
        position += used
    return _through_modules(found)


def notes_of(steps: list[Segment]) -> list[str]:
    """The lines about functions and classes that a path goes through."""
    return list(dict.fromkeys(step.note for step in steps if step.note is not None))


# -- the whole path ----------------------------------------------------------------------------------------------------


def join(steps: list[Segment], root: str = ROOT, *, splits: int = 3) -> str:
    """The path as text; a long one with its repeating parts counted, or its middle left out.

    Args:
        steps: the steps of the path.
        root: what stands for the object that it starts from.
        splits: how often a part that repeats is looked for to both sides of the last one.
    """
    if len(steps) <= MOST_STEPS:
        return _text(steps, root)
    repeated = repetition(steps) if splits else None
    if repeated is not None:
        start, length, count = repeated
        unit = _text(steps[start : start + length], "")
        head = join(steps[:start], root, splits=splits - 1)
        return join(steps[start + length * count :], f"{head}({unit} × {count})", splits=splits - 1)
    half = MOST_STEPS // 2
    return _text(steps[-half:], f"{_text(steps[:half], root)}(… {len(steps) - 2 * half} more …)")


def _text(steps: list[Segment], text: str) -> str:
    for step in steps:
        text = f"{step.before}{text}{step.after}"
    return text


def repetition(steps: list[Segment]) -> tuple[int, int, int] | None:
    """Where a path repeats itself most.

    Returns:
        The first step, the number of steps in the repeating part, and how often it comes; ``None`` if nothing repeats.
    """
    texts = [step.before + step.after for step in steps]
    best: tuple[int, int, int] | None = None
    for length in range(1, 9):
        start = run = 0
        for position in range(length, len(texts) + 1):
            if position < len(texts) and texts[position] == texts[position - length]:
                run += 1
                continue
            count = run // length + 1
            if count >= 3 and (best is None or count * length > best[1] * best[2]):
                best = (start, length, count)
            start, run = position - length + 1, 0
    return best


def _through_modules(steps: list[Segment]) -> list[Segment]:
    """``obj._modules['layers']._modules['3']`` as one writes it: ``obj.layers[3]``."""
    found: list[Segment] = []
    for step in steps:
        previous = found[-1] if found else None
        if (
            previous is not None
            and previous.attribute in _MODULE_TABLES
            and type(step.key) is str
            and _is_torch_module(previous.holder)
        ):
            found[-1] = Segment(_module_item(previous.holder, step.key), holder=previous.holder, attribute=step.key)
        else:
            found.append(step)
    return found


_MODULE_TABLES: Final = ("_modules", "_parameters", "_buffers")


def _torch_names(obj: Any) -> set[str]:
    return {cls.__name__ for cls in type(obj).__mro__ if cls.__module__.startswith("torch.nn.modules.")}


def _is_torch_module(obj: Any) -> bool:
    return "Module" in _torch_names(obj)


def _module_item(holder: Any, name: str) -> str:
    names = _torch_names(holder)
    if name.isdigit() and names & {"Sequential", "ModuleList", "ParameterList"}:
        return f"[{name}]"
    if "ModuleDict" in names or "ParameterDict" in names:
        return f"[{name!r}]"
    return _attribute(name)


# -- one step ----------------------------------------------------------------------------------------------------------


def _segment(chain: list[Node], position: int) -> tuple[Segment, int]:
    """The segment from one node to a later one, and how many nodes later that is."""
    holder = chain[position]
    step = chain[position + 1].step
    assert step is not None
    if step.kind in ("item", "key", "element", "dict item", "dict key", "list item"):
        return _item(holder.obj, step.kind, step.detail, step.position), 1
    own = _OWN_SYNTAX.get(type(holder.obj)) or _own_syntax_by_reduction(holder.reduced)
    found = None if own is None else own(chain, position)
    return found or _from_state(chain, position) or _from_attribute(chain, position) or _from_reduction(chain, position)


def _ahead(chain: list[Node], position: int) -> list[Node]:
    """The next few nodes: no syntax needs more, and a chain may be very long."""
    return chain[position + 1 : position + 9]


def _item(holder: Any, kind: str, detail: Any, index: int) -> Segment:
    if kind in ("key", "element", "dict key"):
        return Segment(f")[{detail}]", "list(")
    if kind in ("item", "list item") and not issubclass(type(holder), dict):
        return Segment(f"[{detail}]")
    literal = _literal(detail)
    if literal is None:
        return Segment(f".values())[{index}]", "list(")
    return Segment(f"[{literal}]", key=detail, holder=holder)


def _literal(key: Any) -> str | None:
    """A key as one types it; ``None`` where there is no short way."""
    if type(key) is tuple:
        parts = [_literal(part) for part in key]
        if any(part is None for part in parts):
            return None
    elif type(key) is float:
        if not math.isfinite(key):
            return None
    elif key is not None and type(key) not in (str, int, bool, bytes):
        return None
    text = repr(key)
    return text if len(text) <= 60 else None


def _attribute(name: Any) -> str:
    if type(name) is str and name.isidentifier():
        return f".{name}"
    return f".__dict__[{name!r}]"


def _from_state(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    """Through the state of an instance: a dict, or a pair of a dict and a dict of slots."""
    holder, rest = chain[position].obj, _ahead(chain, position)
    if rest[0].step is None or rest[0].step.kind != "state":
        return None
    used = 1
    if type(rest[0].obj) is tuple and len(rest) > 1:
        used = 2
    if len(rest) <= used or type(rest[used - 1].obj) is not dict:
        return None
    step, value = rest[used].step, rest[used].obj
    if step is None or step.kind != "item" or type(step.detail) is not str:
        return None
    name = step.detail
    if static_vars(holder).get(name) is value:
        return Segment(_attribute(name), holder=holder, attribute=name), used + 1
    if any(slot == name and found is value for slot, found in slots_of(holder)):
        return Segment(_attribute(name), holder=holder), used + 1
    return None


def _from_attribute(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    """Through tuples and lists that were made for the occasion, to the first attribute of the holder."""
    holder = chain[position].obj
    attributes = _attributes_by_id(holder)
    for distance, node in enumerate(_ahead(chain, position), start=1):
        text = attributes.get(id(node.obj))
        if text is not None:
            name = text[1:]
            own = static_vars(holder).get(name) is node.obj
            return Segment(text, holder=holder, attribute=name if own else None), distance
        if type(node.obj) not in CONTAINERS:
            return None
    return None


def _attributes_by_id(holder: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, value in slots_of(holder):
        found.setdefault(id(value), _attribute(name))
    for name, value in static_vars(holder).items():
        found.setdefault(id(value), _attribute(name))
    found.setdefault(id(type(holder)), ".__class__")
    if issubclass(type(holder), BaseException):
        found.setdefault(id(holder.args), ".args")
        for index, value in enumerate(holder.args):
            found.setdefault(id(value), f".args[{index}]")
    if issubclass(type(holder), tuple):
        names = getattr(type(holder), "_fields", None)
        for index, value in enumerate(tuple.__iter__(holder)):
            found.setdefault(
                id(value), f".{names[index]}" if isinstance(names, tuple) and len(names) > index else f"[{index}]"
            )
    return found


def _from_reduction(chain: list[Node], position: int) -> tuple[Segment, int]:
    """As a part of what the object was reduced to: all that is left to say."""
    holder, node = chain[position].obj, chain[position + 1]
    step = node.step
    assert step is not None
    if step.kind == "attribute":
        return Segment(_attribute(step.detail), holder=holder), 1
    if step.kind == "state" and _defines(holder, "__getstate__"):
        return Segment(".__getstate__()", holder=holder), 1
    if step.kind in _REDUCE_ITEMS:
        text = _REDUCE_ITEMS[step.kind].format(step.detail)
        call = (
            "__reduce__()"
            if _defines(holder, "__reduce__") and not _defines(holder, "__reduce_ex__")
            else "__reduce_ex__(4)"
        )
        return Segment(f".{call}{text}", holder=holder), 1
    kind = type(node.obj).__qualname__
    return Segment(f".<persistent id, a {kind}>" if step.kind == "persistent id" else f".<a {kind}>", holder=holder), 1


_REDUCE_ITEMS: Final = {"function": "[0]", "argument": "[1][{}]", "state": "[2]", "setter": "[5]"}


def _defines(holder: Any, name: str) -> bool:
    """Whether the class of an object, or one of its bases written in Python, has its own method of that name."""
    return any(name in vars(cls) for cls in type(holder).__mro__ if cls is not object)


# -- objects with a syntax of their own --------------------------------------------------------------------------------

Syntax = Callable[[list[Node], int], "tuple[Segment, int] | None"]


def _method(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    holder, part = chain[position].obj, chain[position + 1].obj
    for name in ("__self__", "__func__"):
        if getattr(holder, name, None) is part:
            return Segment(f".{name}", holder=holder), 1
    return None


def _set(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    """Through the list that a set is reduced to."""
    holder = chain[position].obj
    for distance, node in enumerate(_ahead(chain, position), start=1):
        for index, element in enumerate(holder):
            if element is node.obj:
                return Segment(f")[{index}]", "list(", holder=holder), distance
        if type(node.obj) not in CONTAINERS:
            return None
    return None


def _mapping_proxy(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    step = chain[position + 1].step
    if step is None or step.kind != "argument":
        return None
    return Segment("", holder=chain[position].obj), 1  # shows the items of its mapping as its own


def _cell(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    contents = getattr(chain[position].obj, "cell_contents", None)
    for distance in (1, 2):
        if position + distance < len(chain) and chain[position + distance].obj is contents:
            return Segment(".cell_contents", holder=chain[position].obj), distance
    return None


def _function(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    """Of a function by value: code, cells, and the dictionary that brings globals and attributes."""
    holder = chain[position].obj
    name = getattr(holder, "__qualname__", "?")
    steps = list(_steps(chain, position))
    kind, detail = steps[0]
    if kind == "argument" and detail in _FUNCTION_ARGUMENTS:
        return Segment(_FUNCTION_ARGUMENTS[detail], holder=holder), 1
    if kind in ("cell", "cell contents"):
        return _closure(holder, name, detail, contents=kind == "cell contents"), 1
    if kind in ("default", "keyword default"):
        return _default(holder, name, detail), 1
    if kind != "state" or len(steps) < 3:
        return None
    (_, what), (_, which) = steps[1:3]
    if what == "globals":
        note = f"in global variable {which!r} of function {name!r}"
        return Segment(f".__globals__[{which!r}]", holder=holder, note=note), 3
    if what == "cells" and len(steps) >= 4:
        cell = chain[position + 3].obj[0]
        for index, own in enumerate(holder.__closure__ or ()):
            if own is cell:
                return _closure(holder, name, index, contents=steps[3][1] == 1), 4
        return None
    if what == "vars":
        return Segment(_attribute(which), holder=holder), 3
    if what in ("defaults", "kwdefaults"):
        return _default(holder, name, which), 3
    if what in ("annotations", "type_params"):
        return Segment(f".__{what}__[{which!r}]", holder=holder), 3
    return None


_FUNCTION_ARGUMENTS: Final = {0: ".__code__", 1: ".__globals__", 3: ".__closure__"}


def _steps(chain: list[Node], position: int) -> Iterator[tuple[str, Any]]:
    for node in _ahead(chain, position):
        assert node.step is not None
        yield node.step.kind, node.step.detail


def _closure(holder: Any, name: str, index: int, *, contents: bool) -> Segment:
    text = f".__closure__[{index}]"
    if not contents:
        return Segment(text, holder=holder)
    variable = holder.__code__.co_freevars[index]
    return Segment(
        f"{text}.cell_contents", holder=holder, note=f"in closure variable {variable!r} of function {name!r}"
    )


def _default(holder: Any, name: str, which: Any) -> Segment:
    code = holder.__code__
    if type(which) is str:
        return Segment(
            f".__kwdefaults__[{which!r}]", holder=holder, note=f"in the default of {which!r} of function {name!r}"
        )
    first = code.co_argcount - len(holder.__defaults__)
    variable = code.co_varnames[first + which]
    return Segment(
        f".__defaults__[{which}]", holder=holder, note=f"in the default of {variable!r} of function {name!r}"
    )


def _class(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    """Of a class by value: its metaclass, bases and attributes."""
    holder = chain[position].obj
    steps = list(_steps(chain, position))
    kind, detail = steps[0]
    note = f"in class {holder.__qualname__!r}, which goes by value because no name leads to it"
    if kind == "argument" and detail in _CLASS_ARGUMENTS:
        return Segment(_CLASS_ARGUMENTS[detail], holder=holder, note=note), 1
    if kind == "state" and len(steps) >= 3 and steps[1][1] == "attributes":
        name = steps[2][1]
        value = vars(holder).get(name)
        plain = isinstance(value, types.FunctionType) or not hasattr(type(value), "__get__")
        text = _attribute(name) if plain and value is chain[position + 3].obj else f".__dict__[{name!r}]"
        return Segment(text, holder=holder, note=note), 3
    return None


_CLASS_ARGUMENTS: Final = {1: ".__class__", 3: ".__bases__"}


def _module(chain: list[Node], position: int) -> tuple[Segment, int] | None:
    found = _from_attribute(chain, position)
    if found is None:
        return None
    holder = chain[position].obj
    note = f"in module {holder.__name__!r}, which goes by value because no import finds it"
    return found[0]._replace(note=note), found[1]


_OWN_SYNTAX: Final[dict[type, Syntax]] = {
    types.MethodType: _method,
    types.BuiltinFunctionType: _method,
    types.MethodWrapperType: _method,
    types.MappingProxyType: _mapping_proxy,
    set: _set,
    frozenset: _set,
    types.CellType: _cell,
    types.FunctionType: _function,
    types.ModuleType: _module,
}

_OWN_SYNTAX_BY_FUNCTION: Final[dict[Any, Syntax]] = {
    builtins.getattr: _method,
    restore.make_class: _class,
    restore.make_enum: _class,
}


def _own_syntax_by_reduction(reduced: Any) -> Syntax | None:
    if not isinstance(reduced, tuple):
        return None
    try:
        return _OWN_SYNTAX_BY_FUNCTION.get(reduced[0])
    except TypeError:  # not hashable
        return None


# -- the parts that one sees -------------------------------------------------------------------------------------------

_NUMBERS: Final = frozenset({type(None), bool, int, float})


def shown_parts(obj: Any, most: int = 2000) -> list[tuple[Segment, Any]]:
    """What an object consists of for somebody who looks at it: items, attributes, what a function takes along.

    Args:
        obj: the object.
        most: of a container with more parts than this none are returned.

    Returns:
        Pairs of a step and the part; numbers are left out.
    """
    parts: list[tuple[Segment, Any]]
    if issubclass(type(obj), (list, tuple, dict, set, frozenset)) and len(obj) > most:
        return []
    if type(obj) is dict:
        parts = [(_item(obj, "item", key, index), value) for index, (key, value) in enumerate(obj.items())]
    elif type(obj) in (list, tuple):
        parts = [(_item(obj, "item", index, index), value) for index, value in enumerate(obj)]
    elif type(obj) is types.FunctionType:
        parts = list(_parts_of_function(obj))
    elif issubclass(type(obj), type):
        parts = [
            (Segment(_attribute(name), holder=obj), value)
            for name, value in vars(obj).items()
            if not hasattr(type(value), "__set__") and name not in ("__module__", "__doc__", "__weakref__", "__dict__")
        ]
    elif _is_torch_module(obj):
        parts = list(_parts_of_torch_module(obj))
    else:
        parts = [(Segment(_attribute(name), holder=obj), value) for name, value in static_vars(obj).items()]
        parts += [(Segment(_attribute(name), holder=obj), value) for name, value in slots_of(obj)]
    return [(step, value) for step, value in parts if type(value) not in _NUMBERS]


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[Segment, Any]]:
    from .sources import global_names

    for index, cell in enumerate(function.__closure__ or ()):
        try:
            yield _closure(function, function.__qualname__, index, contents=True), cell.cell_contents
        except ValueError:  # an empty cell
            continue
    for name in global_names(function.__code__):
        if name in function.__globals__ and name != "__builtins__":
            yield Segment(f".__globals__[{name!r}]", holder=function), function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield _default(function, function.__qualname__, index), value


def _parts_of_torch_module(module: Any) -> Iterator[tuple[Segment, Any]]:
    attributes = static_vars(module)
    for table in _MODULE_TABLES:
        for name, value in (attributes.get(table) or {}).items():
            yield Segment(_module_item(module, name), holder=module), value
    for name, value in attributes.items():
        if name not in _MODULE_TABLES:
            yield Segment(_attribute(name), holder=module), value
