"""Which processes belong to a cell, and how much have they worked?

Read from /proc. Engines start processes that leave their group and session, so it is asked who started whom.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["cpu_seconds", "descendants"]


def descendants(root: int) -> list[int]:
    """The processes below one; none where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found[1:]


def cpu_seconds() -> float:
    """The CPU time of this process and of all below it, those that have ended included.

    That of others has a resolution of a hundredth of a second.
    """
    ticks = 0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        fields = _stat(pid)
        if fields:  # user and system time of children that have ended; for others their own as well
            ticks += sum(map(int, fields[13:15] if pid == os.getpid() else fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, the process's state."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
