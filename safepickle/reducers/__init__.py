"""One module a library, all of one shape: ``add_rules(registry)`` says what happens to the library's objects.

Such a module is imported by the registry, once its library is in ``sys.modules`` and an object of it turns up. To
support
another library, add a file here and a line to ``registry.LIBRARIES``; :mod:`safepickle.reducers.stdlib` is a sibling
to imitate.
"""

__all__: list[str] = []
