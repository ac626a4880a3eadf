"""What each measurement of `overhead` does in its process. Only the standard library, but for the last two.

Each function takes and returns what JSON holds, and runs in a fresh process.
"""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import safepickle
from benchmarks import workloads
from benchmarks.common import Row, Settings, at_most, extra, interleave, part_of
from benchmarks.copy_graphs import PROTOCOL, copiers
from benchmarks.pickle_work import SMALL_CALL_GOAL, picklers

__all__ = ["calls", "functions", "installation", "installed", "kernels", "one_rule", "rules"]

#: What a reference to a kernel may cost.
REFERENCE_GOAL = 5e-6

SMALL: dict[str, Callable[[], Any]] = {
    "1": lambda: 1,
    "a small dict": lambda: {"a": [1, 2]},
    "one dataclass": lambda: workloads.records(1)[0],
}


def calls(quick: bool) -> list[dict[str, Any]]:
    """The smallest calls: what is left is the fixed cost of a call."""
    settings = Settings(quick=quick)
    rows = []
    modules = picklers()
    for what, make in SMALL.items():
        obj = make()
        data = pickle.dumps(obj, PROTOCOL)
        dumps = {name: partial(module.dumps, obj, protocol=PROTOCOL) for name, module in modules.items()}
        loads = {name: partial(module.loads, data) for name, module in modules.items()}
        deep = {name: partial(copier, obj) for name, copier in copiers().items()}
        goals = [extra(SMALL_CALL_GOAL, "pickle")]
        rows += [
            Row("a call, pickling", f"dumps of {what}", interleave(dumps, settings), "pickle", goals),
            Row("a call, pickling", f"loads of {what}", interleave(loads, settings), "pickle", goals),
            Row("a call, copying", f"deepcopy of {what}", interleave(deep, settings), "copy", [part_of(1.0, "copy")]),
        ]
    shallow = {"copy": lambda: copy.copy([1, 2]), "safepickle": lambda: safepickle.copy([1, 2])}
    rows.append(Row("a call, copying", "copy of a small list", interleave(shallow, settings), "copy"))
    return [row.as_json() for row in rows]


# -- the registry ------------------------------------------------------------------------------------------------------


def rules(count: int, quick: bool) -> list[dict[str, Any]]:
    """Rules that have nothing to do with what is pickled and copied."""
    settings = Settings(quick=quick)
    obj = workloads.records(settings.size(5_000))
    registry = safepickle.Registry()
    for number in range(count):
        registry.register(type(f"Type{number}", (), {}), lambda obj: (str, ()))
        registry.register(f"absent_{number}:Type", lambda obj: (str, ()))
    dumps = {
        "default registry": lambda: safepickle.dumps(obj, PROTOCOL),
        "more rules": lambda: safepickle.dumps(obj, PROTOCOL, registry=registry),
    }
    deep = {
        "default registry": lambda: safepickle.deepcopy(obj),
        "more rules": lambda: safepickle.deepcopy(obj, registry=registry),
    }
    goals = [part_of(1.1, "default registry", of="more rules")]
    what = f"{len(obj):,} dataclasses, {2 * count:,} rules for other types"
    return [
        Row("many rules", f"dumps of {what}", interleave(dumps, settings), "default registry", goals).as_json(),
        Row("many rules", f"deepcopy of {what}", interleave(deep, settings), "default registry", goals).as_json(),
    ]


class Handle:
    """What a user writes a rule for."""

    def __init__(self, number: int) -> None:
        self.number = number


def _reduce(obj: Handle) -> tuple[Any, ...]:
    return Handle, (obj.number,)


class ByTable(pickle.Pickler):
    """How the standard library lets one pickler reduce a type."""

    dispatch_table = {Handle: _reduce}


def one_rule(quick: bool) -> list[dict[str, Any]]:
    """5,000 objects of a type with a user's rule, against what the standard library has for that."""
    import copyreg
    import io

    settings = Settings(quick=quick)
    obj = [Handle(number) for number in range(settings.size(5_000))]
    registry = safepickle.Registry()
    registry.register(Handle, _reduce)

    def by_table() -> bytes:
        file = io.BytesIO()
        ByTable(file, PROTOCOL).dump(obj)
        return file.getvalue()

    dumps: dict[str, Callable[[], object]] = {
        "pickle, dispatch_table": by_table,
        "safepickle, rule": lambda: safepickle.dumps(obj, PROTOCOL, registry=registry),
    }
    task = f"{len(obj):,} objects with a rule"
    row = Row("a rule, pickling", f"dumps of {task}", interleave(dumps, settings), "pickle, dispatch_table")
    copyreg.pickle(Handle, _reduce)
    deep: dict[str, Callable[[], object]] = {
        "copy, copyreg": lambda: copy.deepcopy(obj),
        "safepickle, rule": lambda: safepickle.deepcopy(obj, registry=registry),
    }
    second = Row("a rule, copying", f"deepcopy of {task}", interleave(deep, settings), "copy, copyreg")
    return [row.as_json(), second.as_json()]


# -- install() ---------------------------------------------------------------------------------------------------------


def installation(quick: bool) -> dict[str, Any]:
    """The call itself, and taking it back; nothing but the standard library is imported."""

    def there_and_back() -> None:
        safepickle.install().uninstall()

    times = interleave({"install and uninstall": there_and_back}, Settings(quick=quick))
    return Row("install(), the call", "install() and uninstall()", times).as_json()


def installed(quick: bool) -> list[dict[str, Any]]:
    """The standard library's own calls, with safepickle installed and without."""
    from benchmarks.installed import measure

    return [row.as_json() for row in measure(Settings(quick=quick))]


# -- references --------------------------------------------------------------------------------------------------------


def kernels(quick: bool) -> list[dict[str, Any]]:
    """One Triton kernel more in an object: the difference between two lists, for each kernel."""
    module = importlib.import_module("benchmarks.kernels")
    found = {
        "a kernel at the top of a module": module.softmax,
        "a kernel behind heuristics and autotune": module.matmul,
    }
    return _references("references", found, quick)


def functions(quick: bool) -> list[dict[str, Any]]:
    """One tf.function more in an object."""
    module = importlib.import_module("benchmarks.functions")
    return _references("references", {"a tf.function at the top of a module": module.layers}, quick)


def _references(group: str, found: dict[str, Any], quick: bool) -> list[dict[str, Any]]:
    """What one object costs: a call on a list that holds it, less a call on a list that holds None."""
    settings = Settings(quick=quick)
    rows = []
    for task, obj in found.items():
        held, empty = [obj], [None]
        written, nothing = safepickle.dumps(held), safepickle.dumps(empty)
        verbs: tuple[tuple[str, Callable[[Any], Any], tuple[Any, Any]], ...] = (
            ("dumps", safepickle.dumps, (held, empty)),
            ("deepcopy", safepickle.deepcopy, (held, empty)),
            ("loads", safepickle.loads, (written, nothing)),
        )
        for verb, function, arguments in verbs:
            with_it, without = (partial(function, argument) for argument in arguments)
            times = interleave({"with it": with_it, "without": without}, settings)
            cost = [one - none for one, none in zip(times["with it"], times["without"], strict=True)]
            row = Row(group, f"{verb} of {task}", {"safepickle": cost}, goals=[at_most(REFERENCE_GOAL)])
            rows.append(row.as_json())
    return rows
