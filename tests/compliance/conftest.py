"""Where do the tests of CPython leave their files?"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

__all__: list[str] = []


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes into a new folder: CPython's tests write into the current one."""
    monkeypatch.chdir(tmp_path)
    # One of them puts a relative folder on sys.path; the finder that Python keeps for it is tied to the former one.
    for path in [path for path in sys.path_importer_cache if not os.path.isabs(path)]:
        del sys.path_importer_cache[path]


@pytest.fixture(autouse=True)
def _without_modules_that_have_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides ``torch.classes`` and its like, if another test has imported them.

    The standard library's ``whichmodule`` asks every module for a name. These make one up, which fails when asked.
    """
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType and _has_every_name(module):
            monkeypatch.delitem(sys.modules, name)


def _has_every_name(module: object) -> bool:
    try:
        return getattr(module, "no_such_name", None) is not None
    except Exception:
        return True
