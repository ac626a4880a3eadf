"""What does the registry cost where it has nothing to do?

The payload is 5,000 instances of an importable dataclass. The pickles are compared too: the bytes must be the stdlib's.

    python -m benchmarks.overhead results.json
"""

from __future__ import annotations

import argparse
import copy
import pickle
import sys

import cloudpickle

import safepickle

try:
    import dill
except ImportError:
    dill = None
try:
    import copium
except ImportError:
    copium = None

from benchmarks.common import Row, circumstances, interleave, print_table, write_json
from benchmarks.workloads import records

__all__ = ["main"]

QUESTION = "What does the registry cost where it has nothing to do?"
PROTOCOL = 5
DUMPS_GOAL = 1.25


def measure(count: int, rounds: int) -> list[Row]:
    payload = records(count)
    data = pickle.dumps(payload, PROTOCOL)
    if safepickle.dumps(payload, PROTOCOL) != data:
        raise AssertionError("safepickle's bytes for plain instances are not the stdlib's")
    if safepickle.deepcopy(payload) != payload:
        raise AssertionError("safepickle's copy differs from its original")
    what = f"{count:,} dataclasses"
    return [
        Row(
            f"dumps of {what}",
            interleave(
                {
                    "pickle": lambda: pickle.dumps(payload, PROTOCOL),
                    "safepickle": lambda: safepickle.dumps(payload, PROTOCOL),
                    "cloudpickle": lambda: cloudpickle.dumps(payload, PROTOCOL),
                    **({"dill": lambda: dill.dumps(payload, PROTOCOL)} if dill else {}),
                },
                rounds=rounds,
            ),
            "pickle",
            {"safepickle": DUMPS_GOAL},
        ),
        Row(
            f"loads of {what}",
            interleave(
                {
                    "pickle": lambda: pickle.loads(data),
                    "safepickle": lambda: safepickle.loads(data),
                    "cloudpickle": lambda: cloudpickle.loads(data),
                },
                rounds=rounds,
            ),
            "pickle",
        ),
        Row(
            f"deepcopy of {what}",
            interleave(
                {
                    "copy": lambda: copy.deepcopy(payload),
                    "safepickle": lambda: safepickle.deepcopy(payload),
                    **({"copium": lambda: copium.deepcopy(payload)} if copium else {}),
                },
                rounds=rounds,
            ),
            "copy",
        ),
        Row(
            "dumps(1)",
            interleave(
                {
                    "pickle": lambda: pickle.dumps(1, PROTOCOL),
                    "safepickle": lambda: safepickle.dumps(1, PROTOCOL),
                    "cloudpickle": lambda: cloudpickle.dumps(1, PROTOCOL),
                },
                rounds=rounds,
                number=2_000,
            ),
            "pickle",
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=QUESTION)
    parser.add_argument("output", help="where the JSON goes")
    parser.add_argument("--count", type=int, default=5_000, help="instances in the payload (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="timings of each alternative (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where a goal is missed")
    options = parser.parse_args()

    rows = measure(options.count, options.rounds)
    where = circumstances("cloudpickle", "dill", "copium")
    print_table(f"Overhead, protocol {PROTOCOL}, CPU time; Python {where['python'].split()[0]}", rows)
    write_json(options.output, QUESTION, rows, where)
    return int(options.check and not all(row.met() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
