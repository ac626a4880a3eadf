"""Why are goals missed that are missed? What `python -m benchmarks readme` writes beside them.

An entry is for the tasks that match both patterns; it shows only while such a goal is missed.
"""

from __future__ import annotations

import re

__all__ = ["reason"]

#: Patterns for the group and the task, and the reason.
REASONS: tuple[tuple[str, str, str], ...] = ()


def reason(group: str, task: str) -> str:
    """The reason for a missed goal; empty where none is known."""
    for groups, tasks, why in REASONS:
        if re.search(groups, group) and re.search(tasks, task):
            return why
    return ""
