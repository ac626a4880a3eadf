"""How does a pickle become an object again?

As the standard library does it: loading a pickle runs what the pickle says, so load only what you trust.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

__all__ = ["Unpickler", "load", "loads"]


class Unpickler(pickle.Unpickler):
    """A ``pickle.Unpickler``. Loading a pickle can run any code: load only what you trust.

    Subclasses may define ``find_class`` and ``persistent_load``.
    """


def load(
    file: Any, *, fix_imports: bool = True, encoding: str = "ASCII", errors: str = "strict", buffers: Iterable[Any] | None = ()
) -> Any:
    """Load an object from a file. Arguments as for :func:`pickle.load`. Runs code of the pickle's choice.

    Raises:
        UnpicklingError: the pickle is malformed, or names something that is not here.
    """
    return Unpickler(file, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers).load()


def loads(
    data: Any, /, *, fix_imports: bool = True, encoding: str = "ASCII", errors: str = "strict", buffers: Iterable[Any] | None = ()
) -> Any:
    """Load an object from bytes. Arguments as for :func:`pickle.loads`. Runs code of the pickle's choice.

    Raises:
        UnpicklingError: the pickle is malformed, or names something that is not here.
    """
    return pickle.loads(data, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
