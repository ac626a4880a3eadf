"""Are the compiled modules built? Everything else about the package is in pyproject.toml.

They are optional: where no compiler is found, the installation succeeds and Python serves. They are not tried
with ``SAFEPICKLE_PURE=1`` in the environment, on other interpreters than CPython and on those without a global lock.
"""

import glob
import os
import platform
import sysconfig

from setuptools import Extension, setup

wanted = (
    os.environ.get("SAFEPICKLE_PURE", "0") in ("", "0")
    and platform.python_implementation() == "CPython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
modules = [
    Extension(
        f"safepickle._native.{name}",
        sources=[f"safepickle/_native/{name}.c"],
        depends=sorted(glob.glob("safepickle/_native/*.h")),
        optional=True,
    )
    for name in ("_core", "_pickling")
]

setup(ext_modules=modules if wanted else [])
