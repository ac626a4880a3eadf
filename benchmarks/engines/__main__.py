"""``python -m benchmarks.engines``: the proof, in one table.

    python -m benchmarks.engines                    every engine that is installed here
    python -m benchmarks.engines --quick pyspark    one engine, with a small tensor

The outcome of each engine goes to ``benchmarks/results/cpu/engines.json``, beside what is there of other engines, and
the page ``docs/engines/README.md`` gets its table from there. With ``--quick`` nothing is written unless asked for.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from ..common import REPOSITORY, circumstances
from . import PAYLOADS, QUICK, entries
from .proof import about, missing, prove
from .tables import markdown, print_proof, write_block
from .trips import WORKS

QUESTION = "Which objects does each engine carry, there and back, without and with safepickle?"
RESULTS = REPOSITORY / "benchmarks" / "results" / "cpu" / "engines.json"
PAGE = REPOSITORY / "docs" / "engines" / "README.md"


def main() -> int:
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # the cell that runs is ended on the way out
    known = entries()
    wanted = options.engines or known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"no entry {', '.join(unknown)}; there are {', '.join(known)}")
    results = _read(options.output)
    for entry in wanted:
        absent = missing(entry)
        if absent:
            print(f"{entry}: not proven here, {', '.join(absent)} cannot be imported", file=sys.stderr)
            continue
        known_lines = results.get(entry, {}).get("lines", [])
        results[entry] = _prove_engine(entry, options)
        new = {line["payload"]: line for line in results[entry]["lines"]}
        merged = {**{line["payload"]: line for line in known_lines}, **new}
        results[entry]["lines"] = [merged[payload] for payload in PAYLOADS if payload in merged]
        if options.output is not None:
            _write(options.output, results)
    lines = [line for entry in known if entry in results for line in results[entry]["lines"]]
    print_proof(QUESTION, [line for entry in wanted if entry in results for line in results[entry]["lines"]])
    if options.page is not None:
        write_block(options.page, "proof", markdown(lines))
    carried = all(line["with"]["there"] == line["with"]["back"] == WORKS for line in lines)
    return int(options.check and not carried)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=QUESTION)
    parser.add_argument("engines", nargs="*", help="entries; every one unless given")
    parser.add_argument("--quick", action="store_true", help="a tensor of kilobytes, one trip, nothing written")
    parser.add_argument("--output", type=Path, help=f"the JSON (default: {RESULTS.relative_to(REPOSITORY)})")
    parser.add_argument("--page", type=Path, help=f"gets the table (default: {PAGE.relative_to(REPOSITORY)})")
    parser.add_argument("--payloads", nargs="*", choices=list(PAYLOADS), default=list(PAYLOADS))
    parser.add_argument("--timeout", type=float, default=120, help="seconds a process (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=30, help="seconds a direction (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of processes for a ratio (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where something is not carried")
    options = parser.parse_args()
    if not options.quick:
        options.output = options.output or RESULTS
        options.page = options.page or PAGE
    return options


def _prove_engine(entry: str, options: argparse.Namespace) -> dict[str, Any]:
    makers = QUICK if options.quick else PAYLOADS
    environment = {"SAFEPICKLE_PROOF_LIMIT": str(options.limit)}
    if options.quick:
        environment["SAFEPICKLE_PROOF_ROUNDS"] = "1"
    lines = []
    for payload in options.payloads:
        print(f"{entry}: {payload}", file=sys.stderr, flush=True)
        repeats = 1 if options.quick else options.repeats
        maker = makers[payload]
        line = prove(entry, payload, maker, timeout=options.timeout, repeats=repeats, environment=environment)
        lines.append(line.as_json())
    needs = [_distribution(name) for name in about(entry)[1]]
    where = circumstances(*needs)
    when = {"date": where["date"], "commit": where["commit"]}  # lines of one engine may come from several runs
    return {"circumstances": where, "lines": [{**line, **when} for line in lines]}


def _distribution(module: str) -> str:
    """The distribution of a module that an entry needs."""
    from importlib.metadata import packages_distributions

    return packages_distributions().get(module.partition(".")[0], [module])[0]


def _read(output: Path | None) -> dict[str, Any]:
    if output is None or not output.exists():
        return {}
    engines: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))["engines"]
    return engines


def _write(output: Path, engines: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    content = {"question": QUESTION, "engines": dict(sorted(engines.items()))}
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
