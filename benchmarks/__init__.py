"""One script a question; each prints a table, writes JSON and draws plots. See README.md in this folder."""

from __future__ import annotations

__all__ = ["SCRIPTS"]

#: The scripts, in the order of the page.
SCRIPTS = ("copy_throughput", "pickle_throughput", "kernel_recompile", "overhead", "import_time")
