"""The README's policy table is that of the rules."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton", "tensorflow", "keras", "h5py")),
    reason="the table has the rules of all libraries",
)
def test_the_policy_table_is_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "ci" / "readme.py", "--check"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"{done.stderr}\nrun: python ci/readme.py"
