"""Is the C core of the copier built? Everything else about the package is in pyproject.toml.

It is optional: where no compiler is found, the installation succeeds and the copier in Python serves. It is not tried
with ``SAFEPICKLE_PURE=1`` in the environment, on other interpreters than CPython and on those without a global lock.
"""

import os
import platform
import sysconfig

from setuptools import Extension, setup

wanted = (
    os.environ.get("SAFEPICKLE_PURE", "0") in ("", "0")
    and platform.python_implementation() == "CPython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
core = Extension(
    "safepickle._native._core",
    sources=["safepickle/_native/_core.c"],
    optional=True,
)

setup(ext_modules=[core] if wanted else [])
