"""Which functions are more than functions?

Some libraries give back a plain Python function that closes over their own machinery: what ``torch.compile`` returns
is a closure over a compiler. Its type does not tell, so it is known by a mark: an attribute that the library sets on
it. A rule about such functions is registered under a stand-in for their type; where none applies, they are functions
like all others.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import Any, Final

from .. import sources
from ..copier import running_call
from ..registry import Share, default_registry
from . import closures

__all__ = ["MARKS", "copy_function", "kind_of", "reduce_function"]


def _stand_in(module: str, name: str, doc: str) -> type:
    """A type without objects; its module is the library's, so that asking for its rules loads those of the library."""
    return type(name, (), {"__module__": module, "__doc__": doc, "__safepickle_mark__": True})


#: The attribute that a library sets -> the type under which rules speak about functions that have it.
MARKS: Final[dict[str, type]] = {
    "_torchdynamo_orig_callable": _stand_in("torch", "compile", "What torch.compile and its kind make of a function."),
    "_clear_cache": _stand_in("functools", "singledispatch", "What functools.singledispatch makes of a function."),
    "_tf_decorator": _stand_in("tensorflow", "tf_decorator", "What a decorator of TensorFlow makes of a function."),
    "hooked": _stand_in("torch.optim.optimizer", "step", "What an optimizer puts around the step of its class."),
}


def kind_of(function: types.FunctionType) -> type | None:
    """The stand-in for the type of a marked function; ``None`` for all others."""
    attributes = function.__dict__
    if attributes:
        for mark, kind in MARKS.items():
            if mark in attributes:
                return kind
    return None


def reduce_function(function: types.FunctionType, pickler: Any) -> Any:
    """As the library says, else by name or by value."""
    kind = kind_of(function)
    if kind is not None:
        for rule in pickler.registry.rules_for(kind, "pickle"):
            reduced = rule.reduce(function, pickler) if rule.with_pickler else rule.reduce(function)
            if reduced is not NotImplemented:
                return reduced
    return sources.reduce_function(function, pickler)


def copy_function(function: types.FunctionType, memo: dict[Any, Any]) -> Generator[Any, Any, Any]:
    """As the library says, else itself or one that is bound to the copies of what it holds."""
    kind = kind_of(function)
    if kind is not None:
        call = running_call(memo)
        for rule in (default_registry if call is None else call.registry).rules_for(kind, "copy"):
            if isinstance(rule.copy, Share):
                return function
            if rule.copy is not None:
                made = rule.copy(function, memo)
                copied = (yield from made) if rule.in_steps else made
                if copied is not NotImplemented:
                    return copied
    return (yield from closures.copy_function(function, memo))
