"""Which objects does each engine carry, there and back, today and with safepickle?

``python -m benchmarks.engines`` answers with one table. An *entry* is a module of this package, named after its engine:

``ENGINE``
    the name in the table, a literal.
``NEEDS``
    what must be importable for it: a literal tuple of the names of packages.
``carry(make_payload, installed)``
    carries one payload there and back, and says what happened. ``make_payload`` names a function of no arguments that
    makes it, as ``"module:function"``; ``installed`` says whether safepickle is in use, by the one line that the
    engine's page in the documentation tells its users to add. Returns a dictionary:

    ``there``, ``back``
        one line each: ``"works"``, ``"hangs"``, ``"silently ..."`` where it arrived but is not what was sent, or the
        first line of the exception as the user sees it.
    ``bytes``
        how much was sent there, where it arrived; ``None`` where that is not known.
    ``seconds``
        CPU time of one trip there and back in all processes, where something arrives in both directions; else ``None``.

    It runs in a process of its own that is killed, with all that it has started, when its time is up.
    :func:`benchmarks.engines.trips.trip` does the measuring, and most entries are a call of it.
"""

from __future__ import annotations

import pkgutil

__all__ = ["PAYLOADS", "QUICK", "entries"]

#: What is carried: name in the table -> what makes it.
PAYLOADS = {
    "kernel": "tests.engines.payloads:Kernel",
    "lambda": "tests.engines.payloads:Lambda",
    "lock": "tests.engines.payloads:Lock",
    "tensor": "tests.engines.payloads:big",
}
#: With ``--quick``: a tensor of some kilobytes.
QUICK = {**PAYLOADS, "tensor": "tests.engines.payloads:small"}

_NOT_ENTRIES = {"__main__", "cell", "processes", "proof", "tables", "trips"}


def entries() -> list[str]:
    """The names of the entries."""
    return [module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_ENTRIES]
