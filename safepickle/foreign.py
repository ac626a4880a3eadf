"""What if a ``__deepcopy__`` method calls ``copy.deepcopy``, which does not know our rules?

Then a lock or a kernel below it cannot be copied. But the standard library looks into the memo before all else: where a
copy has failed on that way, the objects that only our rules can copy are copied first, and the call is made once more
with a memo that knows them. Nothing of this runs where nothing fails.
"""

from __future__ import annotations

import copy as _stdlib
import types
from collections.abc import Iterator
from typing import Any, Final

from .copier import deepcopy
from .reachability import referents
from .registry import Registry

__all__ = ["prefilled_memo"]

#: How many objects are looked at.
_MOST: Final = 200_000
#: Types whose objects lead out of the data.
_CLOSED: Final = (
    types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType,
    types.TracebackType, BaseException,
)  # fmt: skip
#: Types whose objects the standard library shares or takes apart itself.
_KNOWN_TO_ALL: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.MethodType)


def prefilled_memo(error: BaseException, root: Any, registry: Registry) -> dict[int, Any] | None:
    """A memo with the copies of what the standard library cannot copy below ``root``.

    Args:
        error: what a copy of ``root`` has failed with.
        root: the object.
        registry: the rules in use.

    Returns:
        The memo; ``None`` where the error did not come through the standard library, or nothing could be prepared.
    """
    if not _came_through_the_standard_library(error):
        return None
    memo: dict[int, Any] = {}
    prepared = False
    for part in _parts(root):
        if id(part) in memo or not registry.rules_for(type(part), "copy") or _can_be_copied(part):
            continue
        try:
            memo[id(part)] = deepcopy(part, memo, registry=registry)
        except Exception:
            continue  # the call that is made again tells, if the method needs it
        prepared = True
    return memo if prepared else None


def _came_through_the_standard_library(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == _stdlib.__file__ and code.co_name == "deepcopy":
            return True
        traceback = traceback.tb_next
    return False


def _can_be_copied(part: Any) -> bool:
    """Whether the standard library copies the object, alone."""
    if isinstance(part, _KNOWN_TO_ALL) or hasattr(type(part), "__deepcopy__"):
        return True
    try:
        _stdlib.deepcopy(part)
    except Exception:
        return False
    return True


def _parts(root: Any) -> Iterator[Any]:
    """The objects below the root, without what is behind code, and behind the error that has just passed."""
    seen = {id(root)}
    queue = [root]
    for part in queue:
        yield part
        if issubclass(type(part), _CLOSED) or len(queue) > _MOST:
            continue
        for below in referents(part):
            if id(below) not in seen:
                seen.add(id(below))
                queue.append(below)
