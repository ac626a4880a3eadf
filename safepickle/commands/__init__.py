"""The commands of ``python -m safepickle``, one module each: ``add_arguments(parser)`` and ``run(arguments) -> exit status``."""

__all__: list[str] = []
