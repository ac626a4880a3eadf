"""How do objects get to the workers of joblib, and back?

joblib's own workers are those of loky, which pickle with a module of the user's choice: :func:`install` chooses this
package, as ``set_loky_pickler("safepickle")`` does. The name goes along with each task, so workers send their results
in the same way. joblib still writes large arrays to files that workers map into memory: its reducers go first.

For ``backend="multiprocessing"`` our rules are asked by joblib's pickler for that; what else is sent there, and what
happens with errors, is the matter of :mod:`safepickle.engines.multiprocessing`.
"""

from __future__ import annotations

from typing import Final

import joblib.pool
from joblib.externals.loky.backend import reduction

from ..changes import Changes
from . import foreign_picklers
from .multiprocessing import main_is_there

__all__ = ["install"]

ENGINE: Final = "joblib"
PICKLER: Final = "safepickle"


def install(changes: Changes) -> None:
    """Change joblib in this process."""
    _choose_pickler(changes)
    foreign_picklers.adopt(
        changes,
        ENGINE,
        joblib.pool.CustomizablePickler,
        where="joblib.pool.CustomizablePickler",
        main=main_is_there,
    )


def _choose_pickler(changes: Changes) -> None:
    before = reduction.get_loky_pickler_name()
    if before == PICKLER:
        return
    reduction.set_loky_pickler(PICKLER)

    def undo() -> bool:
        if reduction.get_loky_pickler_name() != PICKLER:
            return False
        reduction.set_loky_pickler(before)
        return True

    changes.add(ENGINE, f"joblib.externals.loky.set_loky_pickler({PICKLER!r})", undo)
