"""Queues of ``multiprocessing``, to and from a process that is spawned."""

from __future__ import annotations

import multiprocessing
from multiprocessing.reduction import ForkingPickler
from typing import Any

import safepickle

from .trips import first_line, make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "multiprocessing.Queue"
NEEDS = ("torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install("multiprocessing")
    context = multiprocessing.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    worker = context.Process(target=_work, args=(tasks, answers), daemon=True)
    worker.start()

    def there(payload: Any) -> str:
        tasks.put(("use", payload))
        return str(answers.get())

    def back(name: str) -> Any:
        tasks.put(("make", name))
        return answers.get()

    return trip(make_payload, there, back, lambda payload: len(ForkingPickler.dumps(payload)))


def _work(tasks: Any, answers: Any) -> None:
    while True:
        try:
            verb, argument = tasks.get()
        except Exception as error:
            answers.put(first_line(error))
            continue
        answers.put(use(argument) if verb == "use" else make(argument))
