"""The commands of ``python -m safepickle``, one module each.

A module has ``add_arguments(parser)`` and ``run(arguments)``, which returns the exit status.
"""

__all__: list[str] = []
