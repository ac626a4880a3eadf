"""Does an interpreter install safepickle when it starts, if its environment says so, and start in any case?

The distribution is built, and installed into an environment of its own, from what is here: nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from .helpers import REPOSITORY

pytest.importorskip("setuptools", "70.1", reason="builds wheels alone since 70.1")
pytest.importorskip("pip")

pytestmark = pytest.mark.timeout(180)

REPORT = """
import sys
installed = "safepickle.installation" in sys.modules and bool(sys.modules["safepickle.installation"]._asked)
try:
    import pickle, threading
    pickle.dumps(threading.Lock())
    print(installed, "can")
except TypeError:
    print(installed, "cannot")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "autoinstall"
    shutil.copytree(REPOSITORY / "autoinstall", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", target, source], check=True, capture_output=True, timeout=120)
    [file] = target.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """An interpreter with the distribution installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(folder)
    where = {"base": str(folder), "platbase": str(folder), "installed_base": str(folder)}
    place = sysconfig.get_path("purelib", "nt" if os.name == "nt" else "posix_prefix", vars=where)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(place), wheel]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def start(python, value, path=REPOSITORY):
    """What an interpreter with this value in its environment says, on both streams."""
    environment = {name: text for name, text in os.environ.items() if name not in ("SAFEPICKLE_INSTALL", "PYTHONPATH")}
    if value is not None:
        environment["SAFEPICKLE_INSTALL"] = value
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [python, "-c", REPORT], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def test_the_wheel_holds_one_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert names == ["safepickle_autoinstall.pth"]
    assert len((REPOSITORY / "autoinstall" / names[0]).read_text().splitlines()) == 1


@pytest.mark.parametrize("value", [None, "", "0", " "])
def test_nothing_happens_without_the_variable(python, value):
    assert start(python, value) == ("False cannot", "")


def test_the_variable_installs(python):
    assert start(python, "1") == ("True can", "")


def test_the_variable_may_name_engines(python):
    assert start(python, "multiprocessing, ray") == ("True can", "")


def test_an_interpreter_starts_although_the_installation_fails(python, tmp_path):
    printed, errors = start(python, "spork")
    assert printed == "False cannot"
    assert errors.startswith("safepickle: SAFEPICKLE_INSTALL has had no effect: ValueError: there is no engine 'spork'")
    assert len(errors.splitlines()) == 1


def test_an_interpreter_starts_although_safepickle_is_not_there_or_broken(python, tmp_path):
    printed, errors = start(python, "1", path=None)
    assert printed == "False cannot" and "No module named 'safepickle'" in errors
    (tmp_path / "safepickle").mkdir()
    Path(tmp_path, "safepickle", "__init__.py").write_text("1 / 0\n")
    printed, errors = start(python, "1", path=tmp_path)
    assert printed == "False cannot" and errors.endswith("ZeroDivisionError: division by zero")
