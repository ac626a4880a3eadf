"""A drop-in replacement for ``pickle`` and ``copy`` for programs that hold kernels, compiled functions, locks,
closures.

Loading a pickle runs code: load only what you trust. "Safe" says that your objects survive, not that their files are
    harmless.
"""

from __future__ import annotations

import copy as _copy
import pickle as _pickle
import typing as _typing

if _typing.TYPE_CHECKING:  # which keeps the first of two definitions of a name: only what is not defined anew below
    from pickle import DEFAULT_PROTOCOL as DEFAULT_PROTOCOL
    from pickle import HIGHEST_PROTOCOL as HIGHEST_PROTOCOL
    from pickle import PickleBuffer as PickleBuffer
    from pickle import PickleError as PickleError
else:
    from pickle import *  # noqa: F403

from .copier import *  # noqa: F403
from .copier import copy as copy
from .copier import deepcopy as deepcopy
from .errors import CopyError as CopyError
from .errors import PicklingError as PicklingError
from .errors import RegistrationError as RegistrationError
from .errors import UnpicklingError as UnpicklingError
from .pickler import Pickler as Pickler
from .pickler import dump as dump
from .pickler import dumps as dumps
from .registry import SHARE as SHARE
from .registry import Registry as Registry
from .registry import Rule as Rule
from .registry import register as register
from .registry import rule_for as rule_for
from .registry import unregister as unregister
from .unpickler import Unpickler as Unpickler
from .unpickler import load as load
from .unpickler import loads as loads

Error = error = _copy.Error
_names = {*_pickle.__all__, *_copy.__all__, "error"}
__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from .checks import Checked as Checked
    from .checks import CheckError as CheckError
    from .checks import check as check
    from .digests import digest as digest
    from .installation import Installation as Installation
    from .installation import install as install
    from .installation import install_worker as install_worker
    from .installation import installed as installed
    from .installation import uninstall as uninstall
    from .reports import Report as Report
    from .reports import explain as explain
    from .sealing import seal as seal

#: What is imported when it is first asked for: pickling and copying do not need it.
_LATER = {
    "CheckError": "checks", "Checked": "checks", "check": "checks", "digest": "digests", "Report": "reports",
    "explain": "reports", "Installation": "installation", "install": "installation", "install_worker": "installation",
    "installed": "installation", "seal": "sealing", "uninstall": "installation",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    *sorted(_names),
    "SHARE",
    "CheckError",
    "Checked",
    "CopyError",
    "Installation",
    "RegistrationError",
    "Registry",
    "Report",
    "Rule",
    "__version__",
    "check",
    "digest",
    "explain",
    "install",
    "install_worker",
    "installed",
    "register",
    "rule_for",
    "seal",
    "uninstall",
    "unregister",
]
