"""Every pickle that was ever written here loads, or says which Python can load it."""

from __future__ import annotations

import importlib
import pickle
import pickletools
import re
import sys
from pathlib import Path

import pytest

import safepickle
from safepickle import restore

from .kinds import CHECKS, NEEDS, SINCE

FILES = sorted((Path(__file__).parent / "files").glob("*/*.pkl"))
HERE = sys.implementation.cache_tag

def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def stamps(data: bytes) -> set[str]:
    """The versions of Python whose code is in a pickle."""
    return {tag.decode() for tag in re.findall(rb"cpython-\d+", data)}


def test_there_are_files_of_every_kind() -> None:
    for folder in {file.parent for file in FILES}:
        kinds = {file.stem.rpartition(".")[0] for file in folder.glob("*.pkl")}
        assert kinds >= {kind for kind in CHECKS if kind not in NEEDS and kind not in SINCE}, folder.name
    assert any(file.parent.name.endswith(HERE) for file in FILES) or sys.version_info >= (3, 14)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_it_loads(file: Path) -> None:
    kind = file.stem.rpartition(".")[0]
    if kind in NEEDS:
        if NEEDS[kind] == "tensorflow":
            pytest.importorskip("triton")
        pytest.importorskip(NEEDS[kind])
    if sys.version_info < SINCE.get(kind, (3,)):
        with pytest.raises(pickle.UnpicklingError, match="needs Python"):
            pickle.loads(file.read_bytes())
        return
    data = file.read_bytes()
    others = stamps(data) - {HERE}
    if others:
        version = others.pop().removeprefix("cpython-3")
        with pytest.raises(pickle.UnpicklingError, match=rf"written by Python 3\.{version}"):
            pickle.loads(data)
        return
    CHECKS[kind](pickle.loads(data))
    CHECKS[kind](safepickle.loads(data))


def test_every_function_that_pickles_call_is_called_by_a_file() -> None:
    called: set[str] = set()
    for file in FILES:
        strings: list[str] = []
        for op, arg, _ in pickletools.genops(file.read_bytes()):
            if op.name == "GLOBAL":
                module, _, name = arg.partition(" ")
                called.update([name] if module == "safepickle.restore" else [])
            elif op.name in ("SHORT_BINUNICODE", "BINUNICODE"):
                strings.append(arg)
    missing = set(restore.__all__) - called
    assert missing <= NOT_YET, sorted(missing - NOT_YET)
    assert called <= {name for name in dir(restore) if not name.startswith("_")}


#: Functions without a file: what they name must be there (a file on disk, a process group), nothing that is common
#: leads to them, or they are only sent from process to process.
NOT_YET = {
    "open_compressed_file", "fill_codecs_stream", "h5py_file", "h5py_object", "torch_process_group",
    "fill_torch_optimized_module", "tf_context", "tf_tensor", "torch_compiled", "torch_generator", "torch_parameter",
    "torch_wrapped_kernel_named", "install_in_worker", "raise_error",
}  # fmt: skip


def test_the_names_are_still_there() -> None:
    assert importlib.import_module("tests.golden.named").alias(1) == -1
