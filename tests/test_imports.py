"""Is the right thing done after an import, whatever kind of module it is, and is everything else as before?"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import zipfile

import pytest

from safepickle.imports import Watch


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that modules are imported from, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("watched_"):
            del sys.modules[name]


@pytest.fixture
def watch():
    """A watch with the list of what it has seen."""
    seen = []
    made = Watch(seen.append)
    made.seen = seen
    made.start()
    yield made
    made.stop()


def write(folder, name, text="value = 1\n"):
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


def test_the_function_is_called_after_the_module_is_executed(folder, watch):
    write(folder, "watched_plain")
    values = []
    watch._imported = lambda name: values.append((name, sys.modules[name].value))
    watch.names = frozenset({"watched_plain"})
    import watched_plain

    assert values == [("watched_plain", 1)]
    assert type(watched_plain.__loader__) is importlib.machinery.SourceFileLoader
    assert "exec_module" not in vars(watched_plain.__loader__)
    assert watched_plain.__spec__.loader is watched_plain.__loader__


def test_modules_that_are_not_watched_are_left_alone(folder, watch):
    write(folder, "watched_other")
    import watched_other  # noqa: F401

    assert watch.seen == []


def test_a_module_that_is_reloaded_is_reported_again(folder, watch):
    write(folder, "watched_again")
    watch.names = frozenset({"watched_again"})
    import watched_again

    importlib.reload(watched_again)
    assert watch.seen == ["watched_again", "watched_again"]


def test_a_module_whose_import_fails_is_not_reported_until_it_succeeds(folder, watch):
    write(folder, "watched_failing", "import os\nif not hasattr(os, 'watched_ready'): raise ValueError('not yet')\n")
    watch.names = frozenset({"watched_failing"})
    with pytest.raises(ValueError, match="not yet"):
        import watched_failing
    assert watch.seen == []
    assert "watched_failing" not in sys.modules
    import os

    os.watched_ready = True
    try:
        import watched_failing  # noqa: F401
    finally:
        del os.watched_ready
    assert watch.seen == ["watched_failing"]


def test_a_module_that_is_not_there_is_not_there(watch):
    watch.names = frozenset({"watched_nowhere"})
    with pytest.raises(ModuleNotFoundError):
        import watched_nowhere  # noqa: F401
    assert importlib.util.find_spec("watched_nowhere") is None


def test_looking_for_a_module_does_not_report_it(folder, watch):
    write(folder, "watched_looked")
    watch.names = frozenset({"watched_looked"})
    assert importlib.util.find_spec("watched_looked").origin == str(folder / "watched_looked.py")
    assert watch.seen == []
    import watched_looked  # noqa: F401

    assert watch.seen == ["watched_looked"]


def test_a_lazy_module_is_reported_when_it_is_first_used(folder, watch):
    write(folder, "watched_lazy")
    watch.names = frozenset({"watched_lazy"})
    spec = importlib.util.find_spec("watched_lazy")
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["watched_lazy"] = module
    loader.exec_module(module)
    assert watch.seen == []
    assert module.value == 1
    assert watch.seen == ["watched_lazy"]


def test_a_finder_that_makes_modules_lazy_is_waited_for(folder, watch):
    write(folder, "watched_put_off")
    watch.names = frozenset({"watched_put_off"})

    class Lazily:
        @staticmethod
        def find_spec(name, path=None, target=None):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if name == "watched_put_off":
                spec.loader = importlib.util.LazyLoader(spec.loader)
            return spec

    sys.meta_path.insert(1, Lazily)
    try:
        import watched_put_off

        assert watch.seen == []
        assert watched_put_off.value == 1
        assert watch.seen == ["watched_put_off"]
    finally:
        sys.meta_path.remove(Lazily)


def test_a_folder_without_a_module_is_reported_before_what_is_in_it_is_looked_for(folder, watch):
    (folder / "watched_space").mkdir()
    write(folder / "watched_space", "inner")
    watch.names = frozenset({"watched_space"})
    order = []
    watch._imported = lambda name: order.append((name, "watched_space.inner" in sys.modules))
    import watched_space

    assert order == []
    import watched_space.inner

    assert order == [("watched_space", False)]
    assert watched_space.__spec__.loader is not None


def test_modules_in_an_archive_share_a_loader_that_is_left_as_it_is(folder, watch):
    archive = folder / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("watched_zipped.py", "value = 1\n")
        file.writestr("watched_beside.py", "value = 2\n")
    sys.path.insert(0, str(archive))
    try:
        watch.names = frozenset({"watched_zipped"})
        import watched_beside
        import watched_zipped

        assert watch.seen == ["watched_zipped"]
        assert watched_zipped.__loader__.get_source("watched_zipped") == "value = 1\n"
        assert type(watched_zipped.__loader__) is type(watched_beside.__loader__)
        assert watched_zipped.__spec__.loader is watched_zipped.__loader__
    finally:
        sys.path.remove(str(archive))


def test_two_finders_that_ask_all_others_come_to_an_end(folder, watch):
    write(folder, "watched_twice")
    watch.names = frozenset({"watched_twice"})

    class AsksAll:
        busy = False

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if cls.busy:
                return None
            cls.busy = True
            try:
                return importlib.util.find_spec(name) if name == "watched_twice" else None
            finally:
                cls.busy = False

    second = Watch(seen := [])
    second._imported = seen.append
    second.names = frozenset({"watched_twice"})
    second.start()
    sys.meta_path.insert(0, AsksAll)
    try:
        import watched_twice  # noqa: F401
    finally:
        sys.meta_path.remove(AsksAll)
        second.stop()
    assert watch.seen == seen == ["watched_twice"]


def test_an_error_in_the_function_is_a_warning_and_no_error_of_the_import(folder, watch):
    write(folder, "watched_warned")
    watch.names = frozenset({"watched_warned"})

    def fail(name):
        raise LookupError("went wrong")

    watch._imported = fail
    with pytest.warns(RuntimeWarning, match=r"watched_warned: LookupError\('went wrong'\)"):
        import watched_warned
    assert watched_warned.value == 1


def test_an_import_that_has_begun_before_the_end_is_not_reported(folder, watch):
    write(folder, "watched_stopped", "from tests.test_imports import stop; stop()\n")
    watch.names = frozenset({"watched_stopped"})
    global stop
    stop = watch.stop
    import watched_stopped  # noqa: F401

    assert watch.seen == []
    assert watch not in sys.meta_path


def test_threads_import_different_modules_at_once(folder, watch):
    names = [f"watched_thread_{number}" for number in range(8)]
    for name in names:
        write(folder, name, "import time; time.sleep(0.01)\n")
    watch.names = frozenset(names)
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in names for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(watch.seen) == sorted(names)


def test_modules_are_watched_by_the_beginnings_of_their_names(folder, watch):
    write(folder, "watched_by_beginning")
    write(folder, "watched_not")
    watch.beginnings = ("watched_by_",)
    import watched_by_beginning
    import watched_not  # noqa: F401

    assert watch.seen == [watched_by_beginning.__name__]
