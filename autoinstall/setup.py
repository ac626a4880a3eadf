"""What goes into the wheel? One file: ``safepickle_autoinstall.pth``, at the top, where ``site`` finds it."""

from __future__ import annotations

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

FILE = "safepickle_autoinstall.pth"


class OneFile(Distribution):
    """A distribution that has something to build although it has no module."""

    def has_pure_modules(self) -> bool:
        """So ``build_py`` runs."""
        return True


class BuildPth(build_py):
    """Copies the file to where the modules would be."""

    def run(self) -> None:
        """Copy it."""
        target = Path(self.build_lib)
        target.mkdir(parents=True, exist_ok=True)
        self.copy_file(FILE, str(target / FILE))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """The file that is made."""
        return [str(Path(self.build_lib) / FILE)]


setup(distclass=OneFile, cmdclass={"build_py": BuildPth})
