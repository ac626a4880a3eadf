"""How does every ``torch.save`` of a program write what only safepickle can, without an edit?

``safepickle.install("torch.save")`` makes safepickle the default of ``torch.save``'s parameter ``pickle_module``. So
it serves all that ends there: DCP's own planner, Lightning, accelerate, trainers. Who passes a ``pickle_module`` gets
that one. What holds nothing special is written as before, byte for byte, and loads with ``weights_only=True``.
``torch.load`` is left as it is: it reads these files.
"""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..changes import Changes

__all__ = ["install"]

PARAMETER = "pickle_module"
WHERE = "torch.save.__defaults__"


def install(changes: Changes) -> None:
    """Change the default; not where somebody else has changed it."""
    import torch.serialization

    import safepickle

    save: Any = torch.serialization.save
    parameter = inspect.signature(save).parameters[PARAMETER]
    if parameter.default is not pickle:
        return
    before = save.__defaults__
    ours = tuple(safepickle if default is pickle else default for default in before)
    save.__defaults__ = ours

    def undo() -> bool:
        if save.__defaults__ is not ours:
            return False
        save.__defaults__ = before
        return True

    changes.add("torch.save", WHERE, undo)
