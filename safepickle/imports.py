"""What is to be done right after a module has been imported?

A finder at the head of ``sys.meta_path`` looks for the modules that are watched, as the other finders do, and has one
function called when one has been executed: for the first time, or again. All other modules it leaves to the others.

The finders find what they would have found: where the loader is one of the standard library's for files, an attribute
of that one object is set until the module is executed; any other loader is wrapped until then.
"""

from __future__ import annotations

import importlib.machinery
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ["Watch"]

#: Loaders of which there is one for each module.
_OF_ONE_MODULE: Final = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
)


class Watch:
    """A finder that has a function called after the import of some modules.

    Args:
        imported: called with the name of a watched module after each time that it has been executed. What it raises is
            shown as a warning: the import goes on.

    Attributes:
        names: the names of the modules.
        beginnings: what names begin with that are watched, too.

    Example:
        >>> import sys
        >>> seen = []
        >>> watch = Watch(seen.append)
        >>> watch.names = frozenset({"this_module_is_not_there"})
        >>> watch.start()
        >>> watch in sys.meta_path
        True
        >>> watch.stop()
        >>> watch in sys.meta_path
        False
    """

    def __init__(self, imported: Callable[[str], object]) -> None:
        self._imported = imported
        self.names: frozenset[str] = frozenset()
        self.beginnings: tuple[str, ...] = ()
        self._namespaces: set[str] = set()  # watched, and found to be folders without a module of their own
        self._searching = threading.local()
        self._on = False

    def start(self) -> None:
        """Watch from now on."""
        self._on = True
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no longer, not even the imports that have begun."""
        self._on = False
        while self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the other finders find for a watched module, its loader prepared; ``None`` for any other module."""
        if self._namespaces:
            self._look_for_namespaces(fullname)
        if fullname not in self.names and not fullname.startswith(self.beginnings):
            return None
        searching: set[str] = self._searching.__dict__.setdefault("names", set())
        if fullname in searching:  # another finder that asks all finders, as this one does
            return None
        searching.add(fullname)
        try:
            spec = self._found_by_others(fullname, path, target)
        finally:
            searching.discard(fullname)
        if spec is None or not self._on:
            return spec
        if spec.loader is None:
            self._namespaces.add(fullname)
        elif hasattr(spec.loader, "exec_module"):
            spec.loader = self._prepared(spec.loader, fullname)
        return spec

    def _found_by_others(self, fullname: str, path: Any, target: Any) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _look_for_namespaces(self, fullname: str) -> None:
        """A folder is never executed, so what is to be done about it is done when something in it is looked for."""
        for name in list(self._namespaces):
            if fullname.startswith(f"{name}.") and name in sys.modules:
                self._namespaces.discard(name)
                self.executed(name)

    def _prepared(self, loader: Any, name: str) -> Any:
        if type(loader) not in _OF_ONE_MODULE:
            return _Loader(loader, name, self)

        before = vars(loader).get("exec_module")  # another watch's

        def exec_module(module: types.ModuleType) -> None:
            if before is None:
                vars(loader).pop("exec_module", None)
            else:
                loader.exec_module = before
            loader.exec_module(module)
            self.executed(name)

        loader.exec_module = exec_module
        return loader

    def executed(self, name: str) -> None:
        """A module has been executed."""
        if not self._on:
            return
        try:
            self._imported(name)
        except Exception as error:
            warnings.warn(
                f"safepickle: after the import of {name}: {error!r}; its objects are handled as if safepickle were not "
                "installed",
                RuntimeWarning,
                stacklevel=2,
            )


class _Loader:
    """In the place of a loader until its module is executed; asked for anything else, it is as that one."""

    def __init__(self, loader: Any, name: str, watch: Watch) -> None:
        self._loader = loader
        self._name = name
        self._watch = watch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """As the loader does."""
        create = getattr(self._loader, "create_module", None)
        module: types.ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Take the loader's place no longer, and execute the module."""
        attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")  # that of a lazy module would load it
        spec = attributes.get("__spec__")
        if attributes.get("__loader__") is self:
            attributes["__loader__"] = self._loader
        if spec is not None and spec.loader is self:
            spec.loader = self._loader
        self._loader.exec_module(module)
        if spec is not None and issubclass(type(module), _lazy_modules()) and spec.loader is not None:
            spec.loader = self._watch._prepared(spec.loader, self._name)  # it has only been put off
            return
        self._watch.executed(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _lazy_modules() -> tuple[type, ...]:
    """The class of modules that are executed when they are first used, if somebody makes such modules."""
    util = sys.modules.get("importlib.util")
    found = getattr(util, "_LazyModule", None)
    return () if found is None else (found,)
