"""Does CPython's own test suite of `copy` pass with safepickle in its place?

Each copier named by SAFEPICKLE_COMPLIANCE_COPIERS (see `harness.copy_modules`) gets its own set of classes.
"""

from __future__ import annotations

import pytest

from .harness import adapted, copy_facade, copy_modules, load_against, skip_module_without, suites_of

__all__: list[str] = []

skip_module_without("test.test_copy")

pytestmark = pytest.mark.timeout(120)

#: Classes of `test.test_copy` that are not run, and why.
EXCLUDED = {
    "MiscTestCase": "about the names in the module `copy` itself; tests/test_package.py is about those of safepickle"
}

for copier in copy_modules():
    for suite in suites_of(load_against("test.test_copy", {"copy": copy_facade(copier)}), EXCLUDED):
        name = f"{suite.__name__}_{copier.__name__.replace('.', '_')}"
        globals()[name] = adapted(suite, copier, module=__name__, name=name)
del suite, copier  # or pytest would take `suite` for one more class of tests
