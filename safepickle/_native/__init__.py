"""The C core of the copier, if it was built and is wanted.

:mod:`safepickle.copier` is the definition; the core is its twin. ``SAFEPICKLE_PURE=1`` in the environment keeps to Python.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["core"]

core: Any = None
if os.environ.get("SAFEPICKLE_PURE", "0") in ("", "0"):
    try:
        from . import _core as core  # type: ignore[attr-defined, no-redef]
    except ImportError:
        core = None
