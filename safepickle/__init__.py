"""A drop-in replacement for ``pickle`` and ``copy`` for programs that hold kernels, compiled functions, locks and closures.

Loading a pickle runs code: load only what you trust. "Safe" says that your objects survive, not that their files are harmless.
"""

from __future__ import annotations

import copy as _copy
import pickle as _pickle
from pickle import *  # noqa: F403

from . import errors as _errors
from .copier import *  # noqa: F403
from .errors import CopyError, PicklingError, RegistrationError, UnpicklingError
from .pickler import Pickler, dump, dumps
from .registry import SHARE, Registry, Rule, register, rule_for, unregister
from .unpickler import Unpickler, load, loads

Error = error = _copy.Error
_names = {*_pickle.__all__, *_copy.__all__, "error"}
__version__ = "0.1.0"

__all__ = [  # noqa: PLE0604
    *sorted(_names),
    "SHARE",
    "CopyError",
    "RegistrationError",
    "Registry",
    "Rule",
    "__version__",
    "register",
    "rule_for",
    "unregister",
]
