"""What does safepickle cost where it has nothing to do, and what does each thing cost that it does?

The fixed cost of a call; the registry, with many rules and with one that applies; `install()`, and the standard
library's own calls after it; a reference to a kernel or a `tf.function`. What the import costs is in `import_time`.

    python -m benchmarks overhead [--quick]
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from benchmarks import overhead_work
from benchmarks.common import Row, Settings, in_fresh_process, measured

__all__ = ["DISTRIBUTIONS", "QUESTION", "measure"]

QUESTION = "What does safepickle cost where it has nothing to do, and what does each thing cost that it does?"
DISTRIBUTIONS = ("cloudpickle", "dill", "copium", "triton", "tensorflow-cpu", "tensorflow")


def measure(settings: Settings) -> Iterator[Row]:
    """Each measurement in a process of its own."""
    quick = {"quick": settings.quick}
    for function in (overhead_work.calls, overhead_work.one_rule):
        yield from _rows(measured(function, quick, settings))
    for count in (10,) if settings.quick else (10, 1_000):
        yield from _rows(measured(overhead_work.rules, {**quick, "count": count}, settings))
    yield Row.from_json(measured(overhead_work.installation, quick, settings))
    yield from _rows(measured(overhead_work.installed, quick, settings))
    if importlib.util.find_spec("triton") is not None:
        yield from _rows(in_fresh_process(overhead_work.kernels, quick))
    if importlib.util.find_spec("tensorflow") is not None and not settings.quick:
        yield from _rows(in_fresh_process(overhead_work.functions, quick))


def _rows(found: list[dict[str, Any]]) -> Iterator[Row]:
    yield from map(Row.from_json, found)
