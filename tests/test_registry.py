"""Does the registry find the right rule, at the right time, for each verb, and say what is wrong with a bad one?"""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import gc
import importlib
import importlib.util
import io
import os
import pickle
import sys
import threading
import types
import weakref
from pathlib import Path

import pytest

import safepickle
from safepickle import SHARE, Registry
from safepickle.registry import builtin_registry, default_registry
from tests.helpers import call_with_timeout, run_python

PROTOCOLS = (2, 4, 5)


class Handle:
    """Something that knows how it came to be: `made_by` is 'init' unless a rule made it."""

    def __init__(self, name, made_by="init"):
        self.name = name
        self.made_by = made_by


class Derived(Handle):
    pass


class Sibling(Handle):
    pass


def made_by_rule(name):
    return Handle(name, "rule")


def made_by_other_rule(name):
    return Handle(name, "other rule")


def derived_by_rule(cls, name):
    return cls(name, "rule")


def reduce_handle(handle):
    return made_by_rule, (handle.name,)


def reduce_handle_otherwise(handle):
    return made_by_other_rule, (handle.name,)


def reduce_keeping_type(handle):
    return derived_by_rule, (type(handle), handle.name)


def decline(handle):
    return NotImplemented


@pytest.fixture
def registry():
    """A registry of the test's own, on top of the default one."""
    return Registry()


@pytest.fixture
def default():
    """The default registry; what a test registers for the classes of this module is taken back."""
    yield default_registry
    for cls in (Handle, Derived, Sibling):
        if default_registry._rules.get(cls) is not None:
            safepickle.unregister(cls)


@pytest.fixture
def module(monkeypatch):
    """`module(folder, name, text)` makes a module importable for the length of a test, and imports nothing."""
    made = []

    def write(folder: Path, name: str, text: str) -> str:
        path = folder.joinpath(*name.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield write
    for name in made:
        for loaded in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
            del sys.modules[loaded]


def round_trip(obj, registry=None, protocol=None):
    return pickle.loads(safepickle.dumps(obj, protocol, registry=registry))


def both(obj, registry=None):
    """What became of an object by either verb."""
    return [round_trip(obj, registry), safepickle.deepcopy(obj, registry=registry)]


# -- exact types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rule_for_a_type_reduces_its_objects(registry, protocol):
    registry.register(Handle, reduce_handle)
    restored = round_trip([Handle("a")], registry, protocol)
    assert (restored[0].name, restored[0].made_by) == ("a", "rule")


def test_a_reducer_serves_deepcopy_and_copy_as_well(registry):
    registry.register(Handle, reduce_handle)
    assert safepickle.deepcopy(Handle("a"), registry=registry).made_by == "rule"
    assert safepickle.copy(Handle("a"), registry=registry).made_by == "rule"


def test_a_rule_does_not_reach_subclasses_unless_told(registry):
    registry.register(Handle, reduce_handle)
    assert [type(made) for made in both(Derived("a"), registry)] == [Derived, Derived]
    assert [made.made_by for made in both(Derived("a"), registry)] == ["init", "init"]


def test_the_parts_of_a_reduce_value_are_deep_copied_by_deepcopy_and_shared_by_copy(registry):
    registry.register(Handle, reduce_handle)
    name = ["mutable"]
    handle = Handle(name)
    assert safepickle.deepcopy(handle, registry=registry).name == name
    assert safepickle.deepcopy(handle, registry=registry).name is not name
    assert safepickle.copy(handle, registry=registry).name is name


def test_a_string_names_a_global_for_pickle_and_shares_for_copy(registry):
    registry.register(Handle, lambda handle: "THE_HANDLE")
    assert round_trip(THE_HANDLE, registry) is THE_HANDLE
    assert safepickle.deepcopy(THE_HANDLE, registry=registry) is THE_HANDLE
    assert safepickle.copy(THE_HANDLE, registry=registry) is THE_HANDLE


THE_HANDLE = Handle("the")


def test_a_reduce_value_may_have_all_six_items(registry):
    state = {"a": 1}
    registry.register(Handle, lambda h: (Six, (h.name,), state, iter([1, 2]), iter([("k", 3)]), set_six))
    for made in [*both(Handle("x"), registry), safepickle.copy(Handle("x"), registry=registry)]:
        assert (made.name, made.items, made.pairs, made.state) == ("x", [1, 2], {"k": 3}, {"a": 1})


class Six:
    def __init__(self, name):
        self.name, self.items, self.pairs, self.state = name, [], {}, None

    def append(self, item):
        self.items.append(item)

    def extend(self, items):
        self.items.extend(items)

    def __setitem__(self, key, value):
        self.pairs[key] = value


def set_six(obj, state):
    obj.state = state


def test_registering_again_replaces_the_rule(registry):
    registry.register(Handle, reduce_handle)
    registry.register(Handle, reduce_handle_otherwise)
    assert [made.made_by for made in both(Handle("a"), registry)] == ["other rule"] * 2
    registry.unregister(Handle)
    assert [made.made_by for made in both(Handle("a"), registry)] == ["init"] * 2


def test_the_module_level_functions_use_the_default_registry(default):
    assert safepickle.register(Handle, reduce_handle) is reduce_handle
    assert [made.made_by for made in both(Handle("a"))] == ["rule"] * 2
    safepickle.unregister(Handle)
    assert [made.made_by for made in both(Handle("a"))] == ["init"] * 2


def test_register_is_a_decorator_that_gives_back_the_function(default):
    @safepickle.register(Handle)
    def reduce(handle):
        return made_by_rule, (handle.name,)

    assert reduce(Handle("z"))[1] == ("z",)
    assert [made.made_by for made in both(Handle("a"))] == ["rule"] * 2


def test_the_decorator_passes_its_options_on(registry):
    @registry.register(Handle, subclasses=True, with_pickler=True)
    def reduce(handle, pickler):
        return derived_by_rule, (type(handle), None if pickler is None else pickler.protocol)

    assert round_trip(Derived("a"), registry, protocol=3).name == 3
    assert safepickle.deepcopy(Derived("a"), registry=registry).name is None


def test_a_reducer_with_pickler_sees_the_registry_of_the_call(registry):
    seen = []

    def reduce(handle, pickler):
        seen.append(pickler.registry)
        return made_by_rule, (handle.name,)

    registry.register(Handle, reduce, with_pickler=True)
    safepickle.dumps(Handle("a"), registry=registry)
    assert seen == [registry]


def test_any_callable_is_a_reducer(registry):
    class Reducer:
        def __call__(self, handle):
            return made_by_rule, (handle.name,)

    for reducer in (
        Reducer(),
        functools.partial(lambda by, handle: (made_by_rule, (handle.name,)), 1),
        Handle.reduce_bound,
    ):
        registry.register(Handle, reducer)
        assert [made.made_by for made in both(Handle("a"), registry)] == ["rule"] * 2


Handle.reduce_bound = staticmethod(reduce_handle)


# -- copying apart from pickling -------------------------------------------------------------------------------------


def test_share_makes_the_copy_the_object_itself_and_leaves_pickling_alone(registry):
    registry.register(Handle, copy=SHARE)
    handle = Handle("a")
    assert safepickle.deepcopy([handle, handle], registry=registry) == [handle, handle]
    assert safepickle.copy(handle, registry=registry) is handle
    assert round_trip(handle, registry) is not handle


def test_a_copy_function_gets_the_memo_and_makes_the_copy(registry):
    memos = []

    def copy_handle(handle, memo):
        memos.append(memo)
        return Handle(safepickle.deepcopy(handle.name, memo), "copy function")

    registry.register(Handle, copy=copy_handle)
    name = ["n"]
    first, second, again = safepickle.deepcopy([Handle(name), name, THE_HANDLE], registry=registry)
    assert first.made_by == again.made_by == "copy function"
    assert first.name is second is not name
    assert type(memos[0]) is dict and memos[0] is memos[1]


def test_separate_rules_for_the_two_verbs_do_not_mix(registry):
    registry.register(Handle, reduce_handle, copy=lambda handle, memo: Handle(handle.name, "copy function"))
    assert [made.made_by for made in both(Handle("a"), registry)] == ["rule", "copy function"]


def test_a_generator_is_a_copy_function_that_is_sent_the_copies_of_what_it_yields(registry):
    def copy_handle(handle, memo):
        twin = memo[id(handle)] = Handle(None, "generator")
        twin.name = yield handle.name
        return twin

    registry.register(Handle, copy=copy_handle)
    handle = Handle([])
    handle.name.append(handle)
    twin = safepickle.deepcopy(handle, registry=registry)
    assert twin.made_by == "generator"
    assert twin.name is not handle.name
    assert twin.name[0] is twin


def in_steps(prefix, handle, memo):
    return Handle((yield handle.name), prefix)


class InSteps:
    def __call__(self, handle, memo):
        return Handle((yield handle.name), "steps")

    def method(self, handle, memo):
        return Handle((yield handle.name), "steps")


@pytest.mark.parametrize(
    "copier",
    [
        functools.partial(in_steps, "steps"),
        functools.partial(functools.partial(in_steps), "steps"),
        InSteps(),
        InSteps().method,
    ],
    ids=["partial", "partial of a partial", "callable object", "bound method"],
)
def test_a_generator_is_known_in_any_form(registry, copier):
    registry.register(Handle, copy=copier)
    name = ["n"]
    twin = safepickle.deepcopy(Handle(name), registry=registry)
    assert (type(twin), twin.made_by, twin.name) == (Handle, "steps", name)
    assert twin.name is not name


def test_a_generator_copy_rule_works_at_any_depth(registry):
    def copy_handle(handle, memo):
        twin = memo[id(handle)] = Handle(None, "generator")
        twin.name = yield handle.name
        return twin

    registry.register(Handle, copy=copy_handle)
    chain = None
    for _ in range(5000):
        chain = Handle(chain)
    twin = safepickle.deepcopy(chain, registry=registry)
    depth = 0
    while twin is not None:
        assert twin.made_by == "generator"
        depth, twin = depth + 1, twin.name
    assert depth == 5000


def test_a_generator_copy_rule_may_catch_what_goes_wrong_with_a_part(registry):
    class Refuses:
        def __deepcopy__(self, memo):
            raise ValueError("no")

    cleaned = []

    def copy_handle(handle, memo):
        try:
            name = yield handle.name
        except ValueError as error:
            name = str(error)
        finally:
            cleaned.append(handle.name)
        return Handle(name, "generator")

    registry.register(Handle, copy=copy_handle)
    part = Refuses()
    assert safepickle.deepcopy(Handle(part), registry=registry).name == "no"
    assert cleaned == [part]
    chain = Handle(part)
    for _ in range(3000):
        chain = [chain]
    twin = safepickle.deepcopy(chain, registry=registry)
    while type(twin) is list:
        twin = twin[0]
    assert twin.name == "no"


def test_a_generator_copy_rule_may_decline(registry):
    def copy_handle(handle, memo):
        if handle.name == "mine":
            return Handle((yield handle.name), "generator")
        return NotImplemented

    registry.register(Handle, copy=copy_handle)
    mine, other = safepickle.deepcopy([Handle("mine"), Handle("other")], registry=registry)
    assert (mine.made_by, other.made_by) == ("generator", "init")


def test_a_copy_only_rule_stands_before_a_built_in_reducer_and_leaves_pickling_to_it(registry):
    lock_type = type(threading.Lock())
    registry.register(lock_type, copy=SHARE)
    lock = threading.Lock()
    assert safepickle.deepcopy([lock], registry=registry)[0] is lock
    assert round_trip(lock, registry).acquire(blocking=False)
    assert safepickle.deepcopy([lock])[0] is not lock


def test_a_copy_function_that_declines_leaves_it_to_the_built_in_reducer(registry):
    lock_type = type(threading.Lock())
    registry.register(lock_type, copy=lambda lock, memo: NotImplemented)
    with threading.Lock() as _, threading.Lock():
        pass
    lock = threading.Lock()
    lock.acquire()
    copied = safepickle.deepcopy(lock, registry=registry)
    assert copied is not lock and copied.acquire(blocking=False)


def test_a_rule_may_speak_about_copies_of_builtin_containers(registry):
    """The C pickler writes them itself and does not ask."""
    registry.register(list, lambda items: (tuple, (tuple(items),)))
    assert round_trip([1], registry) == [1]
    assert safepickle.deepcopy({"a": [1, 2]}, registry=registry) == {"a": (1, 2)}
    assert safepickle.copy([1], registry=registry) == (1,)


# -- declining -------------------------------------------------------------------------------------------------------


def test_a_rule_that_declines_leaves_the_object_to_the_layer_below():
    below = Registry()
    below.register(Handle, reduce_handle)
    above = Registry(below)
    above.register(Handle, decline)
    assert [made.made_by for made in both(Handle("a"), above)] == ["rule"] * 2
    assert safepickle.copy(Handle("a"), registry=above).made_by == "rule"


def test_a_rule_that_declines_leaves_the_object_to_a_rule_for_a_base_class(registry):
    registry.register(Handle, reduce_keeping_type, subclasses=True)
    registry.register(Derived, decline)
    assert [(type(made), made.made_by) for made in both(Derived("a"), registry)] == [(Derived, "rule")] * 2


def test_where_all_rules_decline_the_standard_library_decides(registry):
    registry.register(Handle, decline)
    assert [made.made_by for made in both(Handle("a"), registry)] == ["init"] * 2
    assert safepickle.copy(Handle("a"), registry=registry).made_by == "init"


def test_a_rule_declines_object_by_object(registry):
    registry.register(Handle, lambda handle: NotImplemented if handle.name == "plain" else reduce_handle(handle))
    mine, plain = round_trip([Handle("mine"), Handle("plain")], registry)
    assert (mine.made_by, plain.made_by) == ("rule", "init")


# -- subclasses ------------------------------------------------------------------------------------------------------


def test_a_rule_for_subclasses_reaches_all_of_them(registry):
    registry.register(Handle, reduce_keeping_type, subclasses=True)
    for cls in (Handle, Derived, Sibling):
        assert [(type(made), made.made_by) for made in both(cls("a"), registry)] == [(cls, "rule")] * 2


def test_an_exact_rule_stands_before_one_that_is_inherited(registry):
    registry.register(Handle, reduce_keeping_type, subclasses=True)
    registry.register(Derived, reduce_handle_otherwise)
    assert round_trip(Derived("a"), registry).made_by == "other rule"
    assert round_trip(Sibling("a"), registry).made_by == "rule"


def test_the_nearest_base_class_with_a_rule_decides(registry):
    class Grandchild(Derived):
        pass

    registry.register(Handle, reduce_handle, subclasses=True)
    registry.register(Derived, reduce_handle_otherwise, subclasses=True)
    assert safepickle.deepcopy(Grandchild("a"), registry=registry).made_by == "other rule"


@pytest.mark.parametrize(
    "method", ["__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"]
)
def test_an_inherited_rule_yields_to_a_protocol_method_of_a_more_derived_class(registry, method):
    registry.register(Handle, reduce_handle, subclasses=True)
    own = type("Own", (Handle,), {method: lambda self, *args: None})
    below = type("Below", (own,), {})
    for cls in (own, below):
        assert registry.rule_for(cls, "pickle") is None
        assert registry.rule_for(cls, "copy") is None


@pytest.mark.parametrize("method", ["__deepcopy__", "__copy__"])
def test_a_copy_method_of_a_more_derived_class_is_no_reason_to_pickle_otherwise(registry, method):
    registry.register(Handle, reduce_handle, subclasses=True)
    own = type("Own", (Handle,), {method: lambda self, *args: "its own"})
    assert registry.rule_for(own, "pickle") is not None


def test_an_inherited_rule_yields_to_deepcopy_of_a_more_derived_class(registry):
    class Own(Handle):
        def __deepcopy__(self, memo):
            return "its own"

    registry.register(Handle, reduce_handle, subclasses=True)
    assert safepickle.deepcopy(Own("a"), registry=registry) == "its own"


def test_an_inherited_rule_yields_to_copy_of_a_more_derived_class(registry):
    class Own(Handle):
        def __copy__(self):
            return "its own"

    registry.register(Handle, reduce_handle, subclasses=True)
    assert safepickle.copy(Own("a"), registry=registry) == "its own"


def test_an_inherited_rule_does_not_yield_to_methods_of_the_registered_class_itself(registry):
    class Base:
        def __reduce__(self):
            raise AssertionError("the rule is asked first")

        def __deepcopy__(self, memo):
            raise AssertionError("the rule is asked first")

    class Below(Base):
        pass

    registry.register(Base, lambda obj: (made_by_rule, ("b",)), subclasses=True)
    assert [made.made_by for made in both(Below(), registry)] == ["rule"] * 2


def test_an_inherited_rule_yields_to_a_copyreg_entry_of_a_more_derived_class(registry, monkeypatch):
    registry.register(Handle, reduce_handle, subclasses=True)
    monkeypatch.setitem(copyreg.dispatch_table, Derived, reduce_handle_otherwise)
    assert [made.made_by for made in both(Derived("a"), registry)] == ["other rule"] * 2
    assert round_trip(Sibling("a"), registry).made_by == "rule"


def test_an_inherited_rule_applies_below_a_class_that_copyreg_has_an_entry_of(registry, monkeypatch):
    """Entries are for the very type: the one that tblib makes of ``Exception`` says nothing about a user's."""

    class Below(Derived):
        pass

    registry.register(Handle, reduce_handle, subclasses=True)
    monkeypatch.setitem(copyreg.dispatch_table, Derived, reduce_handle_otherwise)
    assert [made.made_by for made in both(Below("a"), registry)] == ["rule"] * 2


def test_an_exact_rule_stands_before_protocol_methods_and_copyreg(registry, monkeypatch):
    class Own(Handle):
        def __reduce__(self):
            raise AssertionError

        def __deepcopy__(self, memo):
            raise AssertionError

    monkeypatch.setitem(copyreg.dispatch_table, Own, reduce_handle_otherwise)
    registry.register(Own, reduce_handle)
    assert [made.made_by for made in both(Own("a"), registry)] == ["rule"] * 2


def test_a_rule_for_an_abstract_base_class_does_not_reach_virtual_subclasses(registry):
    registry.register(collections.abc.Sized, reduce_handle, subclasses=True)
    assert round_trip({1, 2}, registry) == {1, 2}


def test_a_rule_for_a_metaclass_speaks_about_its_classes(registry):
    class Meta(type):
        pass

    class Made(metaclass=Meta):
        pass

    registry.register(Meta, lambda cls: (dict, ()), copy=lambda cls, memo: "a class")
    assert round_trip(Made, registry) == {}
    assert safepickle.deepcopy([Made], registry=registry) == ["a class"]


# -- odd metaclasses -------------------------------------------------------------------------------------------------


class AllEqual(type):
    """Classes of this kind are all equal to each other, as with metaclasses that compare by name."""

    def __eq__(cls, other):
        return isinstance(other, AllEqual)

    def __hash__(cls):
        return 7


class Unhashable(type):
    def __eq__(cls, other):
        return cls is other

    __hash__ = None


def test_a_rule_for_a_type_is_not_taken_for_that_of_an_equal_one(registry):
    first = AllEqual("first", (Handle,), {})
    second = AllEqual("second", (Handle,), {})
    registry.register(first, reduce_handle)
    registry.register(second, reduce_handle_otherwise)
    assert registry.rule_for(first).reduce is reduce_handle
    assert registry.rule_for(second).reduce is reduce_handle_otherwise
    for objects in ([first("a"), second("b")], [second("b"), first("a")]):
        expected = ["rule" if type(obj) is first else "other rule" for obj in objects]
        assert [made.made_by for made in round_trip(objects, registry)] == expected
        assert [made.made_by for made in safepickle.deepcopy(objects, registry=registry)] == expected


def test_equal_types_without_rules_are_not_taken_for_one_with_a_rule(registry):
    first = AllEqual("first", (Handle,), {})
    second = AllEqual("second", (Handle,), {})
    registry.register(first, copy=SHARE)
    a, b = first("a"), second("b")
    copies = safepickle.deepcopy([a, b, a], registry=registry)
    assert copies[0] is copies[2] is a
    assert copies[1] is not b


def test_a_rule_can_be_registered_for_a_type_that_cannot_be_hashed(registry):
    cls = Unhashable("Odd", (Handle,), {})
    registry.register(cls, reduce_handle)
    assert registry.rule_for(cls).reduce is reduce_handle
    registry.unregister(cls)
    assert registry.rule_for(cls) is None


# -- by name ---------------------------------------------------------------------------------------------------------


MODULE = """
class Thing:
    def __init__(self, value):
        self.value = value
    class Inner:
        pass
"""


def test_a_name_is_registered_without_importing_it(registry, module, tmp_path):
    module(tmp_path, "named_later", MODULE)
    registry.register("named_later:Thing", lambda thing: (str, ("by rule",)))
    safepickle.dumps([Handle("a")], registry=registry)
    assert "named_later" not in sys.modules


def test_a_name_is_bound_when_its_module_is_imported(registry, module, tmp_path):
    module(tmp_path, "named_later", MODULE)
    registry.register("named_later:Thing", lambda thing: (str, ("by rule",)))
    registry.register("named_later:Thing.Inner", lambda thing: (str, ("inner",)))
    import named_later

    assert both([named_later.Thing(1), named_later.Thing.Inner()], registry) == [["by rule", "inner"]] * 2
    assert safepickle.copy(named_later.Thing(1), registry=registry) == "by rule"


def test_a_name_of_an_imported_module_is_bound_at_once(registry):
    registry.register("collections:OrderedDict", lambda d: (str, ("by rule",)))
    assert both(collections.OrderedDict(a=1), registry) == ["by rule"] * 2
    assert registry.rule_for(collections.OrderedDict).target == "collections:OrderedDict"


def test_a_name_may_be_an_alias_of_a_type_that_is_defined_elsewhere(registry, module, tmp_path):
    module(tmp_path, "elsewhere", MODULE)
    module(tmp_path, "alias_package", "from elsewhere import Thing as Public\n")
    registry.register("alias_package:Public", lambda thing: (str, ("by rule",)))
    import elsewhere

    assert round_trip(elsewhere.Thing(1), registry).value == 1
    importlib.import_module("alias_package")
    assert both(elsewhere.Thing(1), registry) == ["by rule"] * 2


def test_a_name_that_appears_in_its_module_later_is_bound_then(registry, module, tmp_path):
    module(tmp_path, "fills_later", MODULE)
    registry.register("fills_later:Late", lambda thing: (str, ("by rule",)))
    import fills_later

    assert round_trip(fills_later.Thing(1), registry).value == 1
    fills_later.Late = fills_later.Thing
    assert both(fills_later.Thing(1), registry) == ["by rule"] * 2


def test_registering_by_name_while_the_module_is_half_imported(default, module, tmp_path):
    module(
        tmp_path,
        "half",
        """
import safepickle, pickle
safepickle.register("half:Thing", lambda thing: (str, ("by rule",)))
class Thing:
    pass
BEFORE = pickle.loads(safepickle.dumps(Thing()))
class Late:
    pass
safepickle.register("half:Late", lambda thing: (str, ("late",)))
AFTER = pickle.loads(safepickle.dumps([Thing(), Late()]))
""",
    )
    half = importlib.import_module("half")
    try:
        assert half.BEFORE == "by rule"
        assert half.AFTER == ["by rule", "late"]
    finally:
        safepickle.unregister("half:Thing")
        safepickle.unregister("half:Late")


def test_a_rule_by_name_applies_to_the_class_of_that_name_after_a_reload(registry, module, tmp_path):
    module(tmp_path, "reloaded", MODULE)
    registry.register("reloaded:Thing", lambda thing: (str, ("by rule",)))
    import reloaded

    before = reloaded.Thing
    assert both(before(1), registry) == ["by rule"] * 2
    importlib.reload(reloaded)
    assert reloaded.Thing is not before
    assert both(reloaded.Thing(1), registry) == ["by rule"] * 2


def test_a_name_is_not_looked_up_through_code_of_the_module(registry, monkeypatch):
    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    registry.register("lazy_module:Thing", reduce_handle)
    assert [made.made_by for made in both(Handle("a"), registry)] == ["init"] * 2
    registry.unregister("lazy_module:Thing")


def test_a_lazily_loaded_module_stays_unloaded(registry):
    printed = run_python("""
        import importlib.util, sys
        import safepickle

        spec = importlib.util.find_spec("colorsys")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules["colorsys"] = module
        spec.loader.exec_module(module)

        class Thing:
            pass

        safepickle.register("colorsys:Nothing", lambda thing: (str, ()))
        safepickle.loads(safepickle.dumps(Thing()))
        safepickle.deepcopy(Thing())
        print(type(module).__name__)
    """)
    assert printed == "_LazyModule\n"


def test_a_registered_type_wins_over_an_earlier_name_for_it(registry, module, tmp_path):
    module(tmp_path, "named_twice", MODULE)
    registry.register("named_twice:Thing", lambda thing: (str, ("by name",)))
    import named_twice

    registry.register(named_twice.Thing, lambda thing: (str, ("by type",)))
    assert both(named_twice.Thing(1), registry) == ["by type"] * 2
    registry.unregister(named_twice.Thing)
    assert [made.value for made in both(named_twice.Thing(1), registry)] == [1, 1]


def test_a_name_is_unregistered_before_and_after_its_module_is_imported(registry, module, tmp_path):
    module(tmp_path, "unregistered", MODULE)
    registry.register("unregistered:Thing", lambda thing: (str, ("by rule",)))
    registry.unregister("unregistered:Thing")
    registry.register("unregistered:Thing.Inner", lambda thing: (str, ("by rule",)))
    import unregistered

    assert [made.value for made in both(unregistered.Thing(1), registry)] == [1, 1]
    assert both(unregistered.Thing.Inner(), registry) == ["by rule"] * 2
    registry.unregister("unregistered:Thing.Inner")
    assert type(round_trip(unregistered.Thing.Inner(), registry)) is unregistered.Thing.Inner
    with pytest.raises(safepickle.RegistrationError):
        registry.unregister("unregistered:Thing.Inner")


def test_a_type_registered_by_name_can_be_unregistered_by_type(registry):
    registry.register("tests.test_registry:Handle", reduce_handle)
    registry.unregister(Handle)
    assert [made.made_by for made in both(Handle("a"), registry)] == ["init"] * 2
    with pytest.raises(safepickle.RegistrationError, match="nothing is registered"):
        registry.unregister("tests.test_registry:Handle")


def test_a_name_that_leads_to_something_else_than_a_type_is_left_alone(registry):
    registry.register("tests.test_registry:reduce_handle", lambda f: (str, ("by rule",)))
    assert round_trip(reduce_handle, registry) is reduce_handle
    registry.unregister("tests.test_registry:reduce_handle")


def test_no_rule_is_lost_if_the_module_is_imported_during_a_dump(registry, module, tmp_path):
    module(tmp_path, "during", MODULE)
    registry.register("during:Thing", lambda thing: (str, ("by rule",)))

    class Importer:
        def __reduce__(self):
            return list, ([importlib.import_module("during").Thing(1)],)

    assert round_trip([Importer()], registry) == [["by rule"]]


# -- layers ----------------------------------------------------------------------------------------------------------


def test_a_registry_applies_only_to_calls_that_name_it(registry):
    registry.register(Handle, reduce_handle)
    assert [made.made_by for made in both(Handle("a"))] == ["init"] * 2


def test_every_entry_point_takes_a_registry(registry):
    registry.register(Handle, reduce_handle)
    file = io.BytesIO()
    safepickle.dump(Handle("a"), file, registry=registry)
    safepickle.Pickler(file, registry=registry).dump(Handle("b"))
    file.seek(0)
    assert [pickle.load(file).made_by, pickle.load(file).made_by] == ["rule", "rule"]
    assert pickle.loads(safepickle.dumps(Handle("a"), registry=registry)).made_by == "rule"
    assert safepickle.deepcopy(Handle("a"), registry=registry).made_by == "rule"
    assert safepickle.copy(Handle("a"), registry=registry).made_by == "rule"


def test_a_layer_hides_the_one_below_until_it_is_taken_back():
    below, above = Registry(), None
    below.register(Handle, reduce_handle)
    above = Registry(below)
    above.register(Handle, reduce_handle_otherwise)
    assert round_trip(Handle("a"), above).made_by == "other rule"
    above.unregister(Handle)
    assert round_trip(Handle("a"), above).made_by == "rule"
    below.unregister(Handle)
    assert round_trip(Handle("a"), above).made_by == "init"


def test_an_inherited_rule_of_an_upper_layer_stands_before_an_exact_one_below():
    below = Registry()
    below.register(Derived, reduce_handle)
    above = Registry(below)
    above.register(Handle, reduce_handle_otherwise, subclasses=True)
    assert round_trip(Derived("a"), above).made_by == "other rule"


def test_what_is_registered_below_later_is_seen_above(default):
    above = Registry(Registry())
    assert round_trip(Handle("a"), above).made_by == "init"
    safepickle.register(Handle, reduce_handle)
    assert [made.made_by for made in both(Handle("a"), above)] == ["rule"] * 2
    safepickle.unregister(Handle)
    assert [made.made_by for made in both(Handle("a"), above)] == ["init"] * 2


def test_an_empty_registry_knows_nothing(default):
    safepickle.register(Handle, reduce_handle)
    empty = Registry.empty()
    assert list(empty) == []
    assert [made.made_by for made in both(Handle("a"), empty)] == ["init"] * 2
    with pytest.raises(TypeError):
        safepickle.dumps(threading.Lock(), registry=empty)
    with pytest.raises(TypeError):
        safepickle.deepcopy(threading.Lock(), registry=empty)
    empty.register(Handle, reduce_handle_otherwise)
    assert [made.made_by for made in both(Handle("a"), empty)] == ["other rule"] * 2


def test_a_built_in_rule_is_replaced_and_restored():
    lock_type = type(threading.Lock())
    assert safepickle.rule_for(lock_type).origin == "safepickle.reducers.stdlib"
    safepickle.register(lock_type, lambda lock: (str, ("a lock",)))
    try:
        assert safepickle.rule_for(lock_type).origin == "user"
        assert both([threading.Lock()]) == [["a lock"]] * 2
    finally:
        safepickle.unregister(lock_type)
    assert safepickle.rule_for(lock_type).origin == "safepickle.reducers.stdlib"
    assert all(made[0].acquire(blocking=False) for made in both([threading.Lock()]))


def test_a_built_in_rule_is_no_registration_that_could_be_taken_back():
    with pytest.raises(safepickle.RegistrationError, match="nothing is registered"):
        safepickle.unregister(type(threading.Lock()))


def test_rule_for_tells_which_rule_applies_and_where_it_came_from(registry):
    assert registry.rule_for(Handle) is None
    registry.register(Handle, reduce_handle, subclasses=True)
    rule = registry.rule_for(Derived)
    assert (rule.origin, rule.target, rule.subclasses, rule.reduce) == (
        "user",
        "tests.test_registry:Handle",
        True,
        reduce_handle,
    )
    assert str(rule) == "rule for tests.test_registry:Handle (from user)"


def test_rule_for_answers_for_each_verb(registry):
    registry.register(Handle, copy=SHARE)
    assert registry.rule_for(Handle, "pickle") is None
    assert registry.rule_for(Handle, "copy").copy is SHARE


def test_a_registry_lists_its_own_rules(registry):
    registry.register(Handle, reduce_handle)
    registry.register("no_such_module:Thing", reduce_handle)
    assert sorted(rule.target for rule in registry) == ["no_such_module:Thing", "tests.test_registry:Handle"]


def test_nested_deepcopy_calls_keep_the_registry(registry):
    class Holder:
        def __init__(self, part):
            self.part = part

        def __deepcopy__(self, memo):
            return Holder(safepickle.deepcopy(self.part, memo))

    registry.register(Handle, reduce_handle)
    assert safepickle.deepcopy(Holder(Handle("a")), registry=registry).part.made_by == "rule"
    assert safepickle.deepcopy(Holder(Handle("a"))).part.made_by == "init"


def test_a_nested_deepcopy_call_may_bring_another_registry_and_keeps_the_memo(registry):
    other = Registry()
    other.register(Handle, reduce_handle_otherwise)
    shared = Handle("shared")

    class Holder:
        def __init__(self, part, mine):
            self.part, self.mine = part, mine

        def __deepcopy__(self, memo):
            part = safepickle.deepcopy(self.part, memo, registry=other)
            return Holder(part, safepickle.deepcopy(self.mine, memo))

    registry.register(Handle, reduce_handle)
    copied = safepickle.deepcopy([Holder([shared, Handle("a")], Handle("b")), shared], registry=registry)
    assert copied[0].part[0] is copied[1]
    assert [copied[0].part[0].made_by, copied[0].part[1].made_by, copied[0].mine.made_by] == [
        "other rule",
        "other rule",
        "rule",
    ]


# -- later registrations ---------------------------------------------------------------------------------------------


def test_a_rule_that_is_registered_during_a_dump_applies_to_what_follows(registry):
    class Registers:
        def __reduce__(self):
            registry.register(Handle, reduce_handle)
            return str, ()

    assert [made.made_by for made in round_trip([Handle("a"), Registers(), Handle("b")], registry)[::2]] == [
        "init",
        "rule",
    ]


def test_a_rule_that_is_registered_during_a_copy_applies_to_what_follows(registry):
    class Registers:
        def __deepcopy__(self, memo):
            registry.register(Handle, reduce_handle)

    copied = safepickle.deepcopy([Handle("a"), Registers(), Handle("b")], registry=registry)
    assert [copied[0].made_by, copied[2].made_by] == ["init", "rule"]


def test_a_rule_that_is_registered_between_two_dumps_applies_to_the_second(registry):
    file = io.BytesIO()
    pickler = safepickle.Pickler(file, registry=registry)
    pickler.dump(Handle("a"))
    registry.register(Handle, reduce_handle)
    pickler.dump(Handle("b"))
    registry.unregister(Handle)
    pickler.dump(Handle("c"))
    file.seek(0)
    unpickler = pickle.Unpickler(file)
    assert [unpickler.load().made_by for _ in range(3)] == ["init", "rule", "init"]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_asking_for_a_rule_keeps_no_type_alive():
    cls = type("Temporary", (Handle,), {})
    default_registry.rule_for(cls)
    both_verbs = [safepickle.deepcopy(cls("a")), default_registry.rule_for(cls, "copy")]
    reference = weakref.ref(cls)
    del cls, both_verbs
    gc.collect()
    assert reference() is None


def test_a_type_at_the_address_of_a_dead_one_gets_its_own_rule(registry):
    registry.register(Handle, reduce_handle, subclasses=True)
    for number in range(200):
        base = Handle if number % 2 else object
        cls = type("Temporary", (base,), {})
        assert (registry.rule_for(cls) is None) == (base is object)
        del cls


def test_a_layer_that_is_dropped_is_freed(default):
    layer = Registry()
    layer.rule_for(Handle)
    reference = weakref.ref(layer)
    del layer
    gc.collect()
    assert reference() is None
    safepickle.register(Handle, reduce_handle)


def test_a_running_cache_is_forgotten_when_its_call_ends(registry):
    safepickle.dumps([Handle("a")], registry=registry)
    safepickle.deepcopy([Handle("a")], registry=registry)
    with pytest.raises(safepickle.PicklingError):
        safepickle.dumps([Handle("a"), io.StringIO().__enter__, sys._getframe()], registry=registry)
    with pytest.raises(safepickle.CopyError):
        safepickle.deepcopy([Handle("a"), sys._getframe()], registry=registry)
    assert registry._live == set()


# -- threads ---------------------------------------------------------------------------------------------------------


def test_threads_may_register_and_dump_at_once(registry):
    stop = threading.Event()
    failures = []

    def use():
        try:
            while not stop.is_set():
                layer = Registry(registry)
                for made in [*both(Handle("a"), layer), *both(Handle("b"), registry)]:
                    assert made.made_by in ("init", "rule")
        except BaseException as error:
            failures.append(error)

    def change():
        try:
            for number in range(300):
                registry.register(Handle, reduce_handle)
                registry.register(f"absent_{number}:Thing", reduce_handle)
                registry.unregister(Handle)
        except BaseException as error:
            failures.append(error)

    def run():
        users = [threading.Thread(target=use) for _ in range(3)]
        changers = [threading.Thread(target=change) for _ in range(2)]
        for thread in [*users, *changers]:
            thread.start()
        for thread in changers:
            thread.join()
        stop.set()
        for thread in users:
            thread.join()

    call_with_timeout(run, 60)
    assert [failure for failure in failures if not isinstance(failure, safepickle.RegistrationError)] == []


def test_what_was_looked_up_before_a_change_is_not_cached_after_it(registry, monkeypatch):
    """A lookup that began before a registration must not overwrite what the registration made true."""
    lookup = Registry._lookup

    def slow_lookup(self, cls):
        found = lookup(self, cls)
        if cls is Handle and not done:
            done.append(True)
            registry.register(Handle, reduce_handle)  # as another thread would, between the lookup and its caching
        return found

    done = []
    monkeypatch.setattr(Registry, "_lookup", slow_lookup)
    registry.rule_for(Handle)
    assert registry.rule_for(Handle) is not None


def test_a_module_that_registers_while_another_thread_registers_does_not_deadlock(registry):
    """A lazy module imports on attribute access, and registers: the registry's lock must not meet the import lock."""
    inside = threading.Event()

    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            inside.set()
            thread = threading.Thread(target=registry.register, args=(Handle, reduce_handle), daemon=True)
            thread.start()
            thread.join(10)
            raise AttributeError(name)

    sys.modules["lazy_registering"] = Lazy("lazy_registering")
    try:
        call_with_timeout(lambda: registry.register("lazy_registering:Thing", reduce_handle), 5)
    finally:
        del sys.modules["lazy_registering"]


def test_threads_that_start_at_once_all_find_the_rules():
    """The rules for a library are loaded when the first of its objects turns up, by one thread; the others wait."""
    printed = run_python("""
        import pickle, sys, threading
        import safepickle
        sys.setswitchinterval(1e-6)
        barrier, failures = threading.Barrier(8), []

        def work(number):
            barrier.wait()
            try:
                verb = (safepickle.deepcopy, lambda obj: pickle.loads(safepickle.dumps(obj)))[number % 2]
                assert verb([threading.Lock(), lambda: 1])[0].acquire(blocking=False)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(failures)
    """)
    assert printed == "[]\n"


def test_rules_that_another_thread_does_not_finish_loading_are_done_without():
    """Both may be in the middle of imports that need each other: better an answer without them than none."""
    printed = run_python("""
        import threading
        import safepickle, safepickle.registry as registry

        registry._PATIENCE = 0.2
        registry._load_lock.acquire()

        class Thing:
            pass

        done = []
        thread = threading.Thread(target=lambda: done.append(type(safepickle.deepcopy(Thing())).__name__))
        thread.start()
        thread.join(60)
        registry._load_lock.release()
        print(done, safepickle.deepcopy(threading.Lock()).acquire(blocking=False))
    """)
    assert printed == "['Thing'] True\n"


def test_types_of_a_module_that_is_being_imported_are_looked_up_once_where_it_has_no_rules(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import safepickle, safepickle.registry as registry\n"
        "class Point: pass\n"
        "looked_up, lookup = [], registry.Registry._lookup\n"
        "registry.Registry._lookup = lambda self, cls: looked_up.append(cls) or lookup(self, cls)\n"
        "for _ in range(3):\n"
        "    safepickle.deepcopy([Point() for _ in range(5)])\n"
        "    safepickle.loads(safepickle.dumps([Point() for _ in range(5)]))\n"
    )
    assert run_python(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import mine
        print(mine.looked_up.count(mine.Point))
    """) == "1\n"


def test_a_rule_by_name_applies_though_the_type_was_copied_before_its_module_had_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import safepickle\n"
        "def copied(cls):\n"
        "    assert safepickle.deepcopy(cls()).value == 0\n"
        "    return cls\n"
        "@copied\n"
        "class Box:\n"
        "    def __init__(self, value=0):\n"
        "        self.value = value\n"
    )
    assert run_python(f"""
        import sys
        import safepickle
        sys.path.insert(0, {str(tmp_path)!r})
        safepickle.register("mine:Box", lambda box: (type(box), (7,)), copy=lambda box, memo: type(box)(5))
        import mine
        print(safepickle.deepcopy(mine.Box()).value, safepickle.loads(safepickle.dumps(mine.Box())).value)
    """) == "5 7\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_not_locked_out_by_a_thread_of_its_parent():
    printed = run_python("""
        import os, pickle, sys, threading, warnings
        import safepickle, safepickle.registry as registry

        warnings.simplefilter("ignore")  # Python warns of forks in programs with threads, and programs do it
        held, done = threading.Event(), threading.Event()

        def hold():
            with registry._lock, registry._load_lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            class Thing:
                pass
            safepickle.register(Thing, lambda thing: (str, ("by rule",)))
            os._exit(0 if pickle.loads(safepickle.dumps(Thing())) == "by rule" else 1)
        _, status = os.waitpid(child, 0)
        done.set()
        thread.join()
        print(status)
    """)
    assert printed == "0\n"


# -- as an object ----------------------------------------------------------------------------------------------------


def test_a_registry_that_an_object_holds_is_shared_with_the_copy(registry):
    holder = types.SimpleNamespace(registry=registry)
    assert safepickle.deepcopy(holder).registry is registry
    assert copy.deepcopy(holder).registry is registry
    assert safepickle.copy(registry) is registry


def test_the_registries_of_the_package_go_by_name_and_others_do_not_go():
    assert round_trip([default_registry, builtin_registry, SHARE]) == [default_registry, builtin_registry, SHARE]
    with pytest.raises(TypeError, match="a registry cannot be pickled"):
        safepickle.dumps(Registry())


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [5, None, Handle("a"), len, [Handle]])
def test_what_is_no_type_and_no_name_cannot_be_registered(registry, target):
    with pytest.raises(safepickle.RegistrationError, match="expected a type or a string 'module:qualname'"):
        registry.register(target, reduce_handle)
    with pytest.raises(safepickle.RegistrationError):
        registry.register(target)
    with pytest.raises(safepickle.RegistrationError):
        registry.unregister(target)


@pytest.mark.parametrize(
    "name", ["", "Handle", "module.Handle", ":Handle", "module:", "a:b:c", "a b:c", "a:b.<locals>.c", "a..b:c"]
)
def test_a_malformed_name_cannot_be_registered(registry, name):
    with pytest.raises(safepickle.RegistrationError, match="module:qualname"):
        registry.register(name, reduce_handle)
    with pytest.raises(safepickle.RegistrationError, match="module:qualname"):
        registry.register(name)


@pytest.mark.parametrize("reducer", [5, "reduce", (made_by_rule, ())])
def test_a_reducer_must_be_callable(registry, reducer):
    with pytest.raises(safepickle.RegistrationError, match="reduce must be callable"):
        registry.register(Handle, reducer)
    with pytest.raises(safepickle.RegistrationError, match="reduce must be callable"):
        registry.register(Handle)(reducer)


@pytest.mark.parametrize("copier", [5, "SHARE", True])
def test_a_copy_rule_must_be_share_or_callable(registry, copier):
    with pytest.raises(safepickle.RegistrationError, match="copy must be SHARE or callable"):
        registry.register(Handle, reduce_handle, copy=copier)


def test_a_failed_registration_changes_nothing(registry):
    registry.register(Handle, reduce_handle)
    with pytest.raises(safepickle.RegistrationError):
        registry.register(Handle, 5)
    assert registry.rule_for(Handle).reduce is reduce_handle


def test_unregistering_what_is_not_registered_is_an_error(registry):
    for target in (Handle, "tests.test_registry:Handle", "absent:Thing"):
        with pytest.raises(safepickle.RegistrationError, match="nothing is registered"):
            registry.unregister(target)


def test_a_registration_error_is_a_type_error_and_a_pickle_error():
    assert issubclass(safepickle.RegistrationError, TypeError)
    assert issubclass(safepickle.RegistrationError, pickle.PickleError)


WRONG_SHAPES = [
    None,
    5,
    [],
    {},
    (),
    (made_by_rule,),
    (1, 2, 3, 4, 5, 6, 7),
    ("no callable", ()),
    (made_by_rule, ["a"]),
    (made_by_rule, None),
]


@pytest.mark.parametrize("value", WRONG_SHAPES)
def test_a_reducer_that_returns_the_wrong_shape_is_named(registry, value):
    registry.register(Handle, lambda handle: value)
    for verb in (safepickle.dumps, safepickle.deepcopy, safepickle.copy):
        with pytest.raises(safepickle.PicklingError, match=r"rule for tests\.test_registry:Handle"):
            verb(Handle("a"), registry=registry)


def test_a_reducer_that_raises_is_named_and_its_error_chained(registry):
    def reduce(handle):
        raise KeyError("inside the reducer")

    registry.register(Handle, reduce)
    for verb in (safepickle.dumps, safepickle.deepcopy, safepickle.copy):
        with pytest.raises(safepickle.PicklingError, match=r"rule for tests\.test_registry:Handle") as caught:
            verb([Handle("a")] if verb is not safepickle.copy else Handle("a"), registry=registry)
        assert "inside the reducer" in str(caught.value)
        causes = []
        cause = caught.value
        while cause is not None:
            causes.append(type(cause))
            cause = cause.__cause__
        assert KeyError in causes
        assert isinstance(caught.value, KeyError), "code that catches what the reducer raises keeps working"


def test_a_copy_function_that_raises_is_named(registry):
    def copy_handle(handle, memo):
        raise KeyError("inside the copy function")

    registry.register(Handle, copy=copy_handle)
    with pytest.raises(safepickle.CopyError, match=r"rule for tests\.test_registry:Handle") as caught:
        safepickle.deepcopy([Handle("a")], registry=registry)
    assert "inside the copy function" in str(caught.value)


def test_a_keyboard_interrupt_in_a_reducer_is_not_translated(registry):
    def reduce(handle):
        raise KeyboardInterrupt

    registry.register(Handle, reduce)
    for verb in (safepickle.dumps, safepickle.deepcopy, safepickle.copy):
        with pytest.raises(KeyboardInterrupt):
            verb(Handle("a"), registry=registry)
    assert registry._live == set()


def test_rules_for_what_is_no_type_is_a_clear_error(registry):
    with pytest.raises(TypeError, match="type"):
        registry.rule_for("tests.test_registry:Handle")


# -- the entry points of other packages ------------------------------------------------------------------------------


def distribution(folder: Path, name: str, points: dict[str, str], modules: dict[str, str]) -> None:
    """What an installed package looks like: its modules, and its entry points in a `.dist-info`."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in points.items()]
    info.joinpath("entry_points.txt").write_text("\n".join(["[safepickle.reducers]", *lines, ""]))
    for module_name, text in modules.items():
        folder.joinpath(module_name + ".py").write_text(text)


WIDGETS = """
class Widget:
    def __init__(self, made_by="init"):
        self.made_by = made_by
"""

RULES = """
import widgets
print("rules loaded")

def add_rules(registry):
    registry.register(widgets.Widget, lambda widget: (widgets.Widget, ("entry point",)))
"""


def test_rules_of_an_entry_point_are_loaded_when_a_type_of_its_module_turns_up(tmp_path):
    distribution(
        tmp_path, "widgets-rules", {"widgets": "widgets_rules:add_rules"}, {"widgets": WIDGETS, "widgets_rules": RULES}
    )
    printed = run_python(
        """
        import pickle, safepickle
        class Other:
            pass
        safepickle.dumps([Other(), {"a": 1}])
        import widgets
        safepickle.deepcopy(Other())
        print("before")
        print(pickle.loads(safepickle.dumps(widgets.Widget())).made_by)
        print(safepickle.deepcopy(widgets.Widget()).made_by)
        print(safepickle.rule_for(widgets.Widget).origin)
        safepickle.register(widgets.Widget, lambda widget: (widgets.Widget, ("user",)))
        print(safepickle.deepcopy(widgets.Widget()).made_by)
        safepickle.unregister(widgets.Widget)
        print(safepickle.deepcopy(widgets.Widget()).made_by)
        """,
        pythonpath=[tmp_path],
    )
    assert printed.splitlines() == [
        "before",
        "rules loaded",
        "entry point",
        "entry point",
        "entry point widgets = widgets_rules:add_rules",
        "user",
        "entry point",
    ]


@pytest.mark.parametrize(
    "rules",
    ["raise RuntimeError('broken rules')", "def add_rules(registry):\n    raise RuntimeError('broken rules')", ""],
    ids=["import", "call", "missing"],
)
def test_an_entry_point_that_fails_warns_once_and_changes_nothing(tmp_path, rules):
    distribution(
        tmp_path, "widgets-rules", {"widgets": "widgets_rules:add_rules"}, {"widgets": WIDGETS, "widgets_rules": rules}
    )
    printed = run_python(
        """
        import pickle, warnings, safepickle, widgets
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(pickle.loads(safepickle.dumps(widgets.Widget())).made_by)
            print(safepickle.deepcopy(widgets.Widget()).made_by)
        print(len(caught), caught[0].category.__name__)
        print("widgets_rules:add_rules" in str(caught[0].message), "safepickle.reducers" in str(caught[0].message))
        """,
        pythonpath=[tmp_path],
    )
    assert printed.splitlines() == ["init", "init", "1 RuntimeWarning", "True True"]


def test_one_broken_entry_point_does_not_keep_the_next_from_working(tmp_path):
    distribution(tmp_path, "aa-rules", {"widgets": "aa_rules:add_rules"}, {"aa_rules": "1 / 0"})
    distribution(
        tmp_path, "widgets-rules", {"widgets": "widgets_rules:add_rules"}, {"widgets": WIDGETS, "widgets_rules": RULES}
    )
    printed = run_python(
        """
        import warnings, safepickle, widgets
        warnings.simplefilter("ignore")
        print(safepickle.deepcopy(widgets.Widget()).made_by)
        """,
        pythonpath=[tmp_path],
    )
    assert printed.splitlines() == ["rules loaded", "entry point"]


def test_an_entry_point_is_found_for_subclasses_of_its_modules_types(tmp_path):
    rules = RULES.replace('("entry point",)))', '("entry point",)), subclasses=True)')
    distribution(
        tmp_path, "widgets-rules", {"widgets": "widgets_rules:add_rules"}, {"widgets": WIDGETS, "widgets_rules": rules}
    )
    printed = run_python(
        """
        import safepickle, widgets
        class Mine(widgets.Widget):
            pass
        print(safepickle.deepcopy(Mine()).made_by)
        """,
        pythonpath=[tmp_path],
    )
    assert printed.splitlines()[-1] == "entry point"


def test_an_entry_point_may_register_by_name_and_as_a_decorator(tmp_path):
    rules = """
def add_rules(registry):
    @registry.register("widgets:Widget")
    def reduce(widget):
        return type(widget), ("decorated",)
"""
    distribution(
        tmp_path, "widgets-rules", {"widgets": "widgets_rules:add_rules"}, {"widgets": WIDGETS, "widgets_rules": rules}
    )
    printed = run_python(
        "import safepickle, widgets\nprint(safepickle.deepcopy(widgets.Widget()).made_by)",
        pythonpath=[tmp_path],
    )
    assert printed == "decorated\n"


def test_rules_of_a_library_are_loaded_only_when_a_type_of_it_turns_up():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    printed = run_python("""
        import sys, safepickle
        import torch
        safepickle.dumps([1, {"a": object()}])
        safepickle.deepcopy([1, {"a": object()}])
        print("safepickle.reducers.torch" in sys.modules)
        safepickle.deepcopy(torch.Size([1]))
        print("safepickle.reducers.torch" in sys.modules)
    """)
    assert printed == "False\nTrue\n"


def test_the_built_in_layer_is_below_the_default_one():
    assert default_registry._parent is builtin_registry
    assert builtin_registry._parent is None


def test_stdlib_copy_knows_nothing_of_the_rules(default):
    safepickle.register(Handle, reduce_handle)
    assert copy.deepcopy(Handle("a")).made_by == "init"
    assert pickle.loads(pickle.dumps(Handle("a"))).made_by == "init"
