"""Why are goals missed that are missed? What `python -m benchmarks readme` writes beside them.

An entry is for the tasks that match both patterns; it shows only while such a goal is missed.
"""

from __future__ import annotations

import re

__all__ = ["reason"]

#: Patterns for the group and the task, and the reason.
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "object graphs",
        "nested [0-9]+ deep",
        "copium is ahead where one small container holds the next; why is not known yet",
    ),
    (
        "object graphs|without private layouts",
        "dataclass|plain objects|slots|configs|cycles|JSON|ints|floats|tuples|sets",
        "within a tenth or so, and on both sides of it from run to run: other work shares the two cores, their caches "
        "and the memory (with a load of 7 instead of 3 it was a third less); the instructions are counted in "
        "`tests/guard.json`",
    ),
    (
        "models",
        "Linear|conv",
        "cloning the tensors alone, without any module, takes a third of it; the rest are eleven dictionaries and a "
        "dozen attributes a layer",
    ),
    (
        "dumps, objects",
        "ints|floats|strings|tuples",
        "within what two runs of the same differ by on a busy machine: repeated, it was 0.96 to 1.04",
    ),
    (
        "dumps, objects",
        "slots",
        "its part of `pickle`'s time is as it should be; cloudpickle loses less here than with other instances",
    ),
    (
        "without the C core",
        "configs",
        "one call of a Python function for each instance, and these hold little else",
    ),
    (
        "dumps, tensors",
        "400 small tensors",
        "as much as pickling the same bytes as arrays of NumPy takes",
    ),
    (
        "loads, tensors",
        "200 layers",
        "half of it is what `pickle` itself takes for the dictionaries of the modules, without a tensor",
    ),
    (
        "many rules",
        "20 rules",
        "within what two runs of the same differ by: with 2,000 rules it is less",
    ),
)


def reason(group: str, task: str) -> str:
    """The reason for a missed goal; empty where none is known."""
    for groups, tasks, why in REASONS:
        if re.search(groups, group) and re.search(tasks, task):
            return why
    return ""
