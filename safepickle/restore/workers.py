"""What goes to worker processes and back, and never to a file: errors of the sender, and the changes it has made."""

from __future__ import annotations

import pickle
from typing import NoReturn

from ..errors import UnpicklingError
from .checks import _check

__all__ = ["install_in_worker", "raise_error"]


def raise_error(error: pickle.PicklingError) -> NoReturn:
    """Raise an error that the sender had with what it wanted to send.

    Raises:
        PicklingError: the error.
    """
    _check(error, pickle.PicklingError, "an error of a pickler")
    raise error


def install_in_worker(*engines: str) -> None:
    """Install safepickle in a process that one with safepickle has started."""
    from ..engines import MODULES
    from ..installation import install

    for engine in engines:
        if engine not in MODULES:
            raise UnpicklingError(f"malformed pickle: {engine!r} is no engine")
    install(*engines)
