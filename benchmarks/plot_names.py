"""Which plots does each script draw? Apart from :mod:`benchmarks.plots`, which needs matplotlib."""

from __future__ import annotations

__all__ = ["PLOTS"]

PLOTS: dict[str, tuple[str, ...]] = {
    "copy_throughput": ("copy_throughput", "copy_throughput-sizes"),
    "pickle_throughput": ("pickle_throughput",),
    "kernel_recompile": ("kernel_recompile", "kernel_recompile-functions"),
    "overhead": ("overhead",),
    "import_time": ("import_time",),
}
