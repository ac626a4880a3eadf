"""Is there a C core of the copier, and may it be used?

:mod:`safepickle.copier` is the definition; the core is its twin. ``SAFEPICKLE_PURE=1`` in the environment
keeps to Python.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["core", "why_python"]

core: Any = None
why_python = ""
if os.environ.get("SAFEPICKLE_PURE", "0") in ("", "0"):
    try:
        from . import _core as core  # type: ignore[attr-defined, no-redef]
    except ImportError as error:
        why_python = f"the C core is not here: {error}"
else:
    why_python = "SAFEPICKLE_PURE is set"
