"""One attempt of the demo, in a process of its own: an attempt may hang or take the interpreter with it.

``python -m safepickle.commands.demo_attempt write METHOD FILE`` builds the model and runs both verbs of a pickler;
``... read METHOD FILE`` loads what was written, as another process would. Each prints one line of JSON.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

OK = "same numbers"


def _prepare() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.filterwarnings("ignore")
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before triton decorates anything: kernels then run on the CPU
    import triton  # noqa: F401  before TensorFlow: both register LLVM's options, and only this order works


def _verbs(method: str) -> tuple[Callable[[Any], Any], Any]:
    module = importlib.import_module(method)
    copier = {"pickle": copy.deepcopy, "dill": getattr(module, "copy", None)}.get(method)
    return copier or getattr(module, "deepcopy", None) or (lambda obj: module.loads(module.dumps(obj))), module


def _attempt(action: Callable[[], Any]) -> str:
    try:
        return str(action())
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"


def _use(twin: Any, text: bytes, expected: Any) -> str:
    """Run the restored model as its owner would."""
    import torch

    if not twin.lock.acquire(timeout=5):
        return "wrong: its lock is held for ever"
    twin.lock.release()
    return OK if torch.equal(twin(text), expected) else "wrong: other numbers"


def write(method: str, file: Path) -> dict[str, str]:
    """Build the model, copy it, pickle it, load it here, and leave the bytes for another process."""
    import torch

    from .demo_model import DEVICE, Model, gated_kernel, read_text, rms_norm_kernel

    torch.manual_seed(0)
    model, text = Model().to(DEVICE), read_text()
    expected = model(text)  # from here on the tf.function is traced and the kernels have been launched
    deepcopy, module = _verbs(method)

    def same_kernels(twin: Any) -> str:
        shared = twin.norm_kernel is rms_norm_kernel and twin.gated_kernel is gated_kernel
        result = _use(twin, text, expected)
        return result if shared or result != OK else f"{OK}, but compiles its kernels again"

    def copy_independently() -> str:
        twin = deepcopy(model)
        before = model(text)
        with torch.no_grad():
            twin.gate.weight.zero_()
        if torch.equal(model(text), before):
            return same_kernels(deepcopy(model))
        return "wrong: changing the copy changed the original"

    def round_trip() -> str:
        data = module.dumps({"model": model, "text": text, "expected": expected})
        file.write_bytes(data)
        return same_kernels(module.loads(data)["model"])

    return {"deepcopy": _attempt(copy_independently), "pickle": _attempt(round_trip)}


def read(method: str, file: Path) -> dict[str, str]:
    """Load what another process wrote."""

    def load() -> str:
        found = importlib.import_module(method).loads(file.read_bytes())
        return _use(found["model"], found["text"], found["expected"])

    return {"fresh process": _attempt(load)}


def main(arguments: list[str]) -> None:
    """Run one attempt."""
    action, method, file = arguments
    _prepare()
    print(json.dumps({"write": write, "read": read}[action](method, Path(file))))


if __name__ == "__main__":
    main(sys.argv[1:])
