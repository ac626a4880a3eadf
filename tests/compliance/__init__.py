"""Does safepickle behave as `pickle` and `copy` do? CPython's own test suites give the answer."""
