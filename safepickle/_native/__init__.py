"""Are the compiled modules here, were they built for these sources, and may they be used?

:mod:`safepickle.copier` and :mod:`safepickle.pickler` are the definitions; ``_core`` and ``_pickling`` are their twins.
``SAFEPICKLE_PURE=1`` in the environment keeps to Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

__all__ = ["INTERFACES", "core", "pickling", "why_python"]

#: Module -> the number in ``interface.h`` of the calls that it and its Python twin make of each other.
INTERFACES: Final = {"_core": 5, "_pickling": 3}

#: Module -> why its twin in Python serves instead.
why_python: Final[dict[str, str]] = {}


def _module(name: str) -> Any:
    if os.environ.get("SAFEPICKLE_PURE", "0") not in ("", "0"):
        why_python[name] = "SAFEPICKLE_PURE is set"
        return None
    try:
        module = import_module(f"{__name__}.{name}")
    except ImportError as error:
        why_python[name] = f"the compiled module is not here: {error}"
        return None
    if getattr(module, "INTERFACE", None) != INTERFACES[name]:
        why_python[name] = f"built from other sources, build it again: {module.__file__}"
        return None
    return module


core: Any = _module("_core")
pickling: Any = _module("_pickling")
