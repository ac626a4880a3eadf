"""Runs the benchmarks: ``python -m benchmarks all | NAME ... | readme | plots``.

Each prints a table, writes ``results/DEVICE/NAME.json`` and draws plots beside it; ``readme`` writes README.md from
what is there, and ``plots`` draws them once more.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from benchmarks import SCRIPTS
from benchmarks.common import Row, Settings, circumstances, read_json, write_json

__all__ = ["main"]

RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the exit status is 1 where a goal is missed and ``--check`` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["all", *SCRIPTS, "readme", "plots"], metavar="what",
                        help=f"all, readme, plots, or some of: {', '.join(SCRIPTS)}")  # fmt: skip
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small and few: only to see that every script runs")
    parser.add_argument("--output", type=Path, help="a folder for the results (default: that of the committed ones)")
    parser.add_argument("--python", action="append", default=[], help="another interpreter to copy with (repeatable)")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where a goal is missed")
    options = parser.parse_args(arguments)
    if options.quick and options.output is None and set(options.what) - {"readme", "plots"}:
        parser.error("--quick needs --output: its figures are not to take the place of real ones")
    folder = (options.output or RESULTS) / options.device
    settings = Settings(options.device, options.quick, tuple(options.python))
    missed = False
    for name in SCRIPTS if "all" in options.what else [name for name in options.what if name in SCRIPTS]:
        rows = run(name, settings, folder)
        missed = missed or any(row.missed() for row in rows)
    if "plots" in options.what:
        draw_again(folder)
    if "readme" in options.what or ("all" in options.what and options.output is None):
        from benchmarks import page

        page.write(RESULTS)
    return int(options.check and missed)


def run(name: str, settings: Settings, folder: Path) -> list[Row]:
    """Run one script: measure, print, write, draw."""
    from benchmarks.report import show

    script = importlib.import_module(f"benchmarks.{name}")
    rows: list[Row] = []
    start = time.perf_counter()
    for row in script.measure(settings):
        rows.append(row)
        print(f"\r{name}: {len(rows)} rows, {time.perf_counter() - start:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    where = circumstances(*script.DISTRIBUTIONS)
    if settings.device == "cuda":
        import torch

        where["gpu"] = torch.cuda.get_device_name(0)
    show(f"{script.QUESTION}  ({name}, {settings.device}, Python {where['python'].split()[0]})", rows)
    write_json(folder / f"{name}.json", script.QUESTION, rows, where, settings.quick)
    draw(name, rows, folder)
    return rows


def draw(name: str, rows: list[Row], folder: Path) -> None:
    from benchmarks import plots

    plots.draw(name, rows, folder)


def draw_again(folder: Path) -> None:
    """Draw the plots of the results that are there."""
    for name in SCRIPTS:
        if (folder / f"{name}.json").exists():
            draw(name, read_json(folder / f"{name}.json")[1], folder)


if __name__ == "__main__":
    sys.exit(main())
