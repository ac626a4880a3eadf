"""How do tests compile kernels without a GPU, and count how often that happens?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.recompile_work import StubDriver

__all__ = ["MODES", "compilations", "compiled_ptx", "needs_version", "stub_driver"]

#: The two ways in which Triton makes kernels, as changes to a child's environment.
MODES = {"compiler": {"TRITON_INTERPRET": None}, "interpreter": {"TRITON_INTERPRET": "1"}}


def needs_version(*version: int) -> pytest.MarkDecorator:
    """A test of what Triton itself can do, or has options for, from this version on."""
    try:
        from triton import __version__
    except ImportError:
        return pytest.mark.skip
    installed = tuple(int(part) for part in __version__.split(".")[:2])
    return pytest.mark.skipif(installed < version, reason=f"Triton {__version__} cannot do this")


@contextlib.contextmanager
def stub_driver() -> Iterator[None]:
    """Triton compiles for sm_90 within this block."""
    from triton.runtime import driver

    before = dict(vars(driver))
    driver.set_active(StubDriver())
    try:
        yield
    finally:
        vars(driver).update(before)


def compiled_ptx(kernel: Any, *arguments: Any, **constants: Any) -> str:
    """Compile a kernel for arguments of these types and return the assembly."""
    with stub_driver():
        compiled = kernel.warmup(*arguments, grid=(1,), **constants)
    if isinstance(compiled, list):  # a tuned kernel compiles each of its configurations
        compiled = compiled[0]
    return str(compiled.asm["ptx"])


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """What Triton does within this block for kernels that were not launched before.

    ``"compiled <name>"``, or ``"read <name>"`` where its cache on disk has the result.
    """
    from triton import knobs

    done: list[str] = []
    before = knobs.compilation.listener

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        done.append(f"{'read' if cache_hit else 'compiled'} {src.name}")

    knobs.compilation.listener = listen
    try:
        yield done
    finally:
        knobs.compilation.listener = before
