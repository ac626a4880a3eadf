"""A drop-in replacement for ``pickle`` and ``copy`` for programs that hold kernels, compiled functions, locks and closures.

Loading a pickle runs code: load only what you trust. "Safe" says that your objects survive, not that their files are harmless.
"""

from __future__ import annotations

import copy as _copy
import pickle as _pickle
from pickle import *  # noqa: F403
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import errors as _errors
from .copier import *  # noqa: F403
from .errors import CopyError, PicklingError, RegistrationError, UnpicklingError
from .pickler import Pickler, dump, dumps
from .registry import SHARE, Registry, Rule, register, rule_for, unregister
from .unpickler import Unpickler, load, loads

Error = error = _copy.Error
_names = {*_pickle.__all__, *_copy.__all__, "error"}
__version__ = "0.1.0"

if _TYPE_CHECKING:
    from .checks import Checked, CheckError, check
    from .digests import digest
    from .reports import Report, explain

#: What is imported when it is first asked for: pickling and copying do not need it.
_LATER = {
    "CheckError": "checks", "Checked": "checks", "check": "checks", "Report": "reports", "explain": "reports", "digest": "digests",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [  # noqa: PLE0604
    *sorted(_names),
    "SHARE",
    "CheckError",
    "Checked",
    "CopyError",
    "RegistrationError",
    "Registry",
    "Report",
    "Rule",
    "__version__",
    "check",
    "digest",
    "explain",
    "register",
    "rule_for",
    "unregister",
]
