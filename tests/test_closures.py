"""Does a copied, or restored, function work on the copies of what it held, and never on the original?

A closure over ``self`` that goes on calling the original passes every test for equality. So each test here changes what
came back and looks at both.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safepickle
from safepickle import Registry
from tests import graphs
from tests.helpers import run_python

PROTOCOLS = (2, 4, 5)


class Model:
    """What hooks hold on to."""

    def __init__(self, value=0):
        self.value = value
        self.log = []
        self.hooks = {}

    def read(self):
        return self.value

    def add(self, amount):
        self.value += amount
        return self.value


# -- one test a way of holding an object -----------------------------------------------------------------------------


def in_a_cell(model):
    return lambda: model


def in_a_default(model):
    return lambda m=model: m


def in_a_keyword_default(model):
    def hook(*, m=model):
        return m

    return hook


def in_an_attribute(model):
    def hook():
        return hook.model

    hook.model = model
    return hook


def in_a_partial(model):
    return functools.partial(identity, model)


def in_a_partials_keyword(model):
    return functools.partial(identity, x=model)


def in_a_bound_method(model):
    return model.itself


def in_a_method_of_a_function(model):
    return types.MethodType(lambda self: self, model)


def in_a_list_in_a_cell(model):
    box = [model]
    return lambda: box[0]


def in_a_dict_in_a_default(model):
    return lambda box={"model": model}: box["model"]


def in_a_tuple_in_a_cell(model):
    box = (1, (model,))
    return lambda: box[1][0]


def in_a_cell_of_a_cell(model):
    def outer():
        def inner():
            return model

        return inner

    return lambda: outer()()


def in_a_closure_in_a_cell(model):
    inner = in_a_cell(model)
    return lambda: inner()


def in_a_partial_in_a_cell(model):
    inner = in_a_partial(model)
    return lambda: inner()


def in_a_closure_in_a_partial(model):
    return functools.partial(in_a_cell(model))


def in_a_method_in_a_cell(model):
    method = model.itself
    return lambda: method()


def in_an_object_in_a_cell(model):
    holder = Holder(model)
    return lambda: holder.held


def in_a_wrapper(model):
    def original():
        return model

    @functools.wraps(original)
    def wrapper():
        return wrapper.__wrapped__()

    return wrapper


def in_a_generator_function(model):
    def generate():
        yield model

    return lambda: next(generate())


def in_a_callable_object(model):
    return Holder(model)


def in_a_mutual_recursion(model):
    def even(n):
        return model if n == 0 else odd(n - 1)

    def odd(n):
        return even(n - 1)

    return lambda: even(2)


def in_a_function_that_holds_itself(model):
    def hook(n=1):
        return hook(n - 1) if n else model

    return hook


def in_an_lru_cache(model):
    @functools.lru_cache
    def hook():
        return model

    return hook


def in_an_attribute_of_an_lru_cache(model):
    hook = functools.lru_cache(lambda: hook.model)
    hook.model = model
    return hook


class Holder:
    def __init__(self, held):
        self.held = held

    def __call__(self):
        return self.held


def identity(x):
    return x


Model.itself = identity

WAYS = [
    in_a_cell,
    in_a_default,
    in_a_keyword_default,
    in_an_attribute,
    in_a_partial,
    in_a_partials_keyword,
    in_a_bound_method,
    in_a_method_of_a_function,
    in_a_list_in_a_cell,
    in_a_dict_in_a_default,
    in_a_tuple_in_a_cell,
    in_a_cell_of_a_cell,
    in_a_closure_in_a_cell,
    in_a_partial_in_a_cell,
    in_a_closure_in_a_partial,
    in_a_method_in_a_cell,
    in_an_object_in_a_cell,
    in_a_wrapper,
    in_a_generator_function,
    in_a_callable_object,
    in_a_mutual_recursion,
    in_a_function_that_holds_itself,
    in_an_lru_cache,
    in_an_attribute_of_an_lru_cache,
]

SHARED_LISTS = {  # where the hook comes before, after or inside of what it holds
    "hook first": lambda hook, model: [hook, model],
    "hook last": lambda hook, model: [model, hook],
    "hook inside": lambda hook, model: (model.hooks.update(hook=hook), [None, model])[1],
    "only through another hook": lambda hook, model: [lambda: hook, model],
}


def parts_of(how, root):
    if how == "hook first":
        return root[0], root[1]
    if how == "hook last":
        return root[1], root[0]
    if how == "hook inside":
        return root[1].hooks["hook"], root[1]
    return root[0](), root[1]


@pytest.mark.parametrize("how", SHARED_LISTS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_copied_hook_works_on_the_copy(way, how):
    model = Model(1)
    hook = way(model)
    root = SHARED_LISTS[how](hook, model)
    twin_hook, twin = parts_of(how, safepickle.deepcopy(root))
    assert twin is not model
    assert twin_hook() is twin
    assert hook() is model
    twin_hook().value = 10
    assert (model.value, twin.value) == (1, 10)
    hook().value = 5
    assert (model.value, twin.value) == (5, 10)


@pytest.mark.parametrize("how", SHARED_LISTS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_restored_hook_works_on_the_restored_object(way, how):
    model = Model(1)
    root = SHARED_LISTS[how](way(model), model)
    for protocol in PROTOCOLS:
        twin_hook, twin = parts_of(how, pickle.loads(safepickle.dumps(root, protocol)))
        assert twin_hook() is twin is not model
        twin_hook().value = 10
        assert (model.value, twin.value) == (1, 10)


@pytest.mark.parametrize(
    "way", [way for way in WAYS if type(way(Model())) is types.FunctionType], ids=lambda way: way.__name__
)
def test_a_hook_over_something_that_is_not_copied_is_shared(way):
    model = Model(1)
    hook = way(model)
    assert safepickle.deepcopy([hook, 1])[0] is hook
    assert safepickle.deepcopy({"hook": hook, "other": Model(2)})["hook"] is hook
    assert safepickle.deepcopy(hook) is hook
    assert safepickle.copy(hook) is hook


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_shallow_copy_goes_on_working_on_the_original(way):
    model = Model(1)
    assert safepickle.copy([way(model), model])[0]() is model
    assert safepickle.copy(way(model))() is model


# -- idioms ----------------------------------------------------------------------------------------------------------


def test_an_activation_hook_logs_into_the_copys_log():
    model = Model()
    model.hooks["log"] = lambda x: model.log.append(x)
    twin = safepickle.deepcopy(model)
    twin.hooks["log"]("twin")
    model.hooks["log"]("model")
    assert (model.log, twin.log) == (["model"], ["twin"])


def test_a_builtin_method_as_hook_is_that_of_the_copys_list():
    model = Model()
    model.hooks["log"] = model.log.append
    model.hooks["closure"] = (lambda append: lambda x: append(x))(model.log.append)
    twin = safepickle.deepcopy(model)
    twin.hooks["closure"]("twin")
    assert (model.log, twin.log) == ([], ["twin"])


def test_a_method_that_is_replaced_on_the_instance_is_bound_to_the_copy():
    model = Model(1)

    def double(self):
        return 2 * self.value

    model.read = types.MethodType(double, model)
    twin = safepickle.deepcopy(model)
    twin.value = 10
    assert (twin.read(), model.read()) == (20, 2)
    assert twin.read.__func__ is double


def test_a_method_that_is_wrapped_on_the_instance_calls_the_copy():
    model = Model(1)
    original = model.read

    def read():
        return original() + 1

    model.read = read
    twin = safepickle.deepcopy(model)
    twin.value = 10
    assert (twin.read(), model.read()) == (11, 2)


def test_a_decorated_method_keeps_its_class_and_works_on_each_instance():
    def logged(function):
        @functools.wraps(function)
        def wrapper(self, *args):
            self.log.append(function.__name__)
            return function(self, *args)

        return wrapper

    class Decorated(Model):
        @logged
        def add(self, amount):
            return super().add(amount)

    model = Decorated(1)
    model.hooks["add"] = model.add
    for twin in (safepickle.deepcopy(model), safepickle.loads(safepickle.dumps(model))):
        assert twin.hooks["add"](10) == 11
        assert twin.log == ["add"]
        assert twin.value == 11
        assert type(twin) is Decorated
    assert (model.value, model.log) == (1, [])


def test_a_function_with_super_finds_its_class():
    class Base:
        def name(self):
            return "base"

    class Derived(Base):
        def name(self):
            return super().name() + " derived"

    model = Derived()
    model.named = model.name
    for twin in (safepickle.deepcopy(model), safepickle.loads(safepickle.dumps(model))):
        assert twin.named() == "base derived"
        assert twin.named.__self__ is twin


def test_a_counter_of_the_copy_counts_for_itself():
    def make(model):
        count = 0

        def count_up():
            nonlocal count
            count += 1
            model.value = count
            return count

        return count_up

    model = Model()
    model.hooks["count"] = make(model)
    model.hooks["count"]()
    twin = safepickle.deepcopy(model)
    assert [twin.hooks["count"](), twin.hooks["count"]()] == [2, 3]
    assert (model.value, twin.value) == (1, 3)
    assert model.hooks["count"]() == 2
    assert twin.hooks["count"]() == 4


def counter_over(model):
    """Two functions share a variable; only one of them holds the model."""
    count = 0

    def count_up():
        nonlocal count
        count += 1
        model.value = count

    def read():
        return count

    return count_up, read


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_two_functions_that_share_a_variable_share_a_new_one(order):
    model = Model()
    count_up, read = counter_over(model)
    count_up()
    root = [[count_up, read, model][index] for index in order]
    for twins in (safepickle.deepcopy(root), safepickle.loads(safepickle.dumps(root))):
        twin_up, twin_read, twin = (twins[order.index(index)] for index in range(3))
        twin_up()
        twin_up()
        assert (twin_read(), twin.value) == (3, 3)
        assert (read(), model.value) == (1, 1)


def chain_of_counters(model):
    """`a` shares a variable with `b`, `b` another one with `c`; only `a` holds the model."""
    first = second = 0

    def a():
        nonlocal first
        first += 1
        return model

    def b():
        nonlocal second
        second = first

    def c():
        return second

    return a, b, c


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_functions_that_share_variables_with_functions_that_are_rebuilt_are_rebuilt(order):
    model = Model()
    parts = [*chain_of_counters(model), model]
    twins = safepickle.deepcopy([parts[index] for index in order])
    a, b, c, twin = (twins[order.index(index)] for index in range(4))
    assert a() is twin
    b()
    assert (c(), parts[2]()) == (1, 0)


def test_a_function_that_is_reached_only_through_another_shares_the_variable_too():
    model = Model()
    count_up, read = counter_over(model)
    holder = lambda: read
    twin, twin_up, twin_holder = safepickle.deepcopy([model, count_up, holder])
    twin_up()
    assert (twin_holder()(), read(), twin.value) == (1, 0, 1)


def test_a_variable_of_functions_that_are_shared_stays_theirs():
    def pair():
        count = 0

        def up():
            nonlocal count
            count += 1

        return up, lambda: count

    up, read = pair()
    twin_up, twin_read, _ = safepickle.deepcopy([up, read, Model()])
    assert twin_up is up and twin_read is read


def test_what_a_hook_holds_besides_the_model_is_shared():
    config = {"rate": 1}
    model = Model()
    hook = lambda: (model, config)
    twin_hook, twin = safepickle.deepcopy([hook, model])
    assert twin_hook()[0] is twin
    assert twin_hook()[1] is config


def test_what_leads_to_the_model_is_copied_for_the_hook_and_stays_one_object():
    model = Model()
    box = {"model": model}
    first, second = (lambda: box), (lambda: (box, 1))
    twin_first, twin_second, twin = safepickle.deepcopy([first, second, model])
    assert twin_first() is twin_second()[0] is not box
    assert twin_first()["model"] is twin


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_what_is_copied_for_one_hook_is_not_the_original_for_another(order):
    """`other` is in no one's hands but the hooks'; the first takes it along in a box with the model."""
    model, other = Model(), Model()
    box = [model, other]
    parts = [lambda: box, lambda: other, model]
    twins = safepickle.deepcopy([parts[index] for index in order])
    boxed, alone, twin = (twins[order.index(index)] for index in range(3))
    assert boxed()[0] is twin
    assert boxed()[1] is alone() is not other


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_what_is_copied_for_a_hook_ties_further_hooks(order):
    model, other, third = Model(), Model(), Model()
    box, next_box = [model, other], [other, third]
    parts = [lambda: box, lambda: next_box, lambda: third, model]
    twins = safepickle.deepcopy([parts[index] for index in order])
    first, second, last, twin = (twins[order.index(index)] for index in range(4))
    assert first()[0] is twin
    assert first()[1] is second()[0] is not other
    assert second()[1] is last() is not third


def test_a_recursive_closure_calls_its_own_copy():
    def make(model):
        def visit(n):
            model.log.append(n)
            return visit if n == 0 else visit(n - 1)

        return visit

    model = Model()
    visit = make(model)
    twin, twin_visit = safepickle.deepcopy([model, visit])
    assert twin_visit(1) is twin_visit is not visit
    assert (twin.log, model.log) == ([1, 0], [])


def test_closures_over_each_other_stay_together():
    def make(model):
        def ping(n):
            return pong(n - 1) if n else model

        def pong(n):
            return ping(n - 1) if n else model

        return ping, pong

    model = Model()
    ping, pong = make(model)
    for order in ([ping, pong, model], [model, pong, ping], [pong, model, ping]):
        twins = safepickle.deepcopy(order)
        twin = twins[order.index(model)]
        twin_ping, twin_pong = twins[order.index(ping)], twins[order.index(pong)]
        assert [twin_ping(n) for n in range(4)] == [twin] * 4
        assert twin_ping.__closure__[1].cell_contents is twin_pong or twin_ping.__closure__[0].cell_contents is not None


def test_one_function_held_twice_is_one_function_in_the_copy():
    model = Model()
    hook = lambda: model
    model.hooks.update(first=hook, second=hook)
    twin = safepickle.deepcopy(model)
    assert twin.hooks["first"] is twin.hooks["second"] is not hook


def test_a_cell_that_is_still_empty_stays_empty_until_it_is_filled():
    def make(model):
        def hook():
            return model, later

        if model is None:
            later = None
        return hook

    model = Model()
    twin, hook = safepickle.deepcopy([model, make(model)])
    with pytest.raises(NameError):
        hook()
    assert hook.__closure__[[*hook.__code__.co_freevars].index("model")].cell_contents is twin


def test_what_a_rebuilt_function_says_of_itself_is_what_the_original_says():
    model = Model()

    def hook(a: int, b=2, *, c=3) -> Model:
        """A docstring."""
        return model

    hook.attribute = [1]
    _, twin = safepickle.deepcopy([model, hook])
    assert twin is not hook
    for name in (
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__annotations__",
        "__defaults__",
        "__kwdefaults__",
    ):
        assert getattr(twin, name) == getattr(hook, name)
    assert twin.__code__ is hook.__code__
    assert twin.__globals__ is hook.__globals__
    assert twin.__dict__ == hook.__dict__ and twin.__dict__ is not hook.__dict__


def test_the_original_function_is_left_alone():
    model = Model()
    box = [model]

    def hook(a=box, *, b=box):
        return model

    hook.attribute = box
    before = (
        hook.__closure__,
        hook.__closure__[0].cell_contents,
        hook.__defaults__,
        dict(hook.__kwdefaults__),
        dict(hook.__dict__),
    )
    safepickle.deepcopy([hook, model])
    assert (hook.__closure__, hook.__closure__[0].cell_contents) == before[:2]
    assert (hook.__defaults__, hook.__kwdefaults__, hook.__dict__) == before[2:]
    assert hook.__defaults__[0] is hook.attribute is box


# -- what stays shared -----------------------------------------------------------------------------------------------


REGISTERED = Model()


def named_hook(model=REGISTERED):
    return model


def test_a_function_with_a_name_is_shared_if_it_holds_nothing_that_is_copied():
    assert safepickle.deepcopy([named_hook, identity, Model.read, len]) == [named_hook, identity, Model.read, len]
    assert safepickle.deepcopy([named_hook, Model()])[0] is named_hook


def test_code_without_anything_to_hold_is_shared():
    plain = lambda x: x
    assert safepickle.deepcopy([plain, Model()])[0] is plain


def test_a_class_in_a_cell_is_no_reason_to_rebuild():
    cls = type("Local", (Model,), {})
    hook = lambda: cls
    assert safepickle.deepcopy([hook, cls, cls()])[0] is hook


def test_what_a_rule_shares_is_no_reason_to_rebuild():
    registry = Registry()
    registry.register(Model, copy=safepickle.SHARE)
    model = Model()
    hook = lambda: model
    assert safepickle.deepcopy([hook, model], registry=registry)[0] is hook


def test_values_that_are_their_own_copies_are_no_reason_to_rebuild():
    value, text, empty = (1, "a"), "text", ()
    hook = lambda: (value, text, empty)
    assert safepickle.deepcopy([hook, value, text, empty, (value, empty)])[0] is hook


def test_an_object_whose_own_method_shares_it_is_no_reason_to_copy_it():
    class Shared(Model):
        def __deepcopy__(self, memo):
            return self

    shared = Shared()
    hook = lambda: shared
    twin_hook, twin = safepickle.deepcopy([hook, shared])
    assert twin_hook() is twin is shared


def test_a_reducer_that_drops_a_part_is_asked_before_the_part_is_copied():
    """Whatever happens to the hook, it must not hold the original of something that has a copy."""

    class Drops(Model):
        def __reduce__(self):
            return Drops, (self.value,)

    model = Drops(1)
    model.hooks["hook"] = lambda: model
    twin = safepickle.deepcopy(model)
    assert twin.hooks == {}


# -- pickling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_functions_that_share_a_variable_share_it_when_restored(protocol):
    model = Model()
    count_up, read = counter_over(model)
    twin_up, twin_read = pickle.loads(safepickle.dumps((count_up, read), protocol))
    twin_up()
    twin_up()
    assert (twin_read(), read()) == (2, 0)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_hook_in_a_script_works_on_the_restored_object_elsewhere(way, tmp_path):
    source = """
        import pickle, sys
        from tests.test_closures import Model, {way}
        import safepickle
        model = Model(1)
        model.hooks["hook"] = {way}(model)
        with open(sys.argv[1], "wb") as file:
            safepickle.dump(model, file)
    """
    path = tmp_path / "payload"
    run_python(source.format(way=way.__name__), args=[path])
    twin = pickle.loads(path.read_bytes())
    assert twin.hooks["hook"]() is twin


def test_hooks_defined_in_a_script_work_on_the_copy_and_on_the_restored_object():
    printed = run_python("""
        import pickle, safepickle

        class Model:
            def __init__(self):
                self.log, self.hooks = [], []
                self.hooks.append(lambda x: self.log.append(x))
                self.hooks.append(self.note)
            def note(self, x):
                self.log.append(("note", x))

        model = Model()
        for twin in (safepickle.deepcopy(model), pickle.loads(safepickle.dumps(model))):
            for hook in twin.hooks:
                hook(1)
            print(twin.log, model.log)
    """)
    assert printed == "[1, ('note', 1)] []\n" * 2


# -- any graph -------------------------------------------------------------------------------------------------------

CLOSURES = ["closure", "defaults", "attributes", "sharing"]
KINDS = ["list", "dict", "Plain", "tuple", "partial", "CopiesItself", "method", "Data", *CLOSURES]


def _closure(parts):
    first, second = [*parts, None, None][:2]
    return lambda: (first, second)


def _defaults(parts):
    first, second = [*parts, None, None][:2]
    return lambda a=first, *, b=second: (a, b)


def _attributes(parts):
    hook = lambda: None
    for index, part in enumerate(parts):
        setattr(hook, f"part_{index}", part)
    return hook


def _sharing(parts):
    """Two functions over one variable, of which one may hold something more."""
    first, second = [*parts, None, None][:2]
    pair = [lambda: first, lambda: (first, second)]
    return tuple(pair)


@pytest.fixture(autouse=True)
def kinds_of_functions(monkeypatch):
    makers = {"closure": _closure, "defaults": _defaults, "attributes": _attributes, "sharing": _sharing}
    for name, maker in makers.items():
        monkeypatch.setitem(graphs.IMMUTABLE, name, maker)


def reached(root):
    """All objects in a graph, through functions."""
    found, stack = {}, [root]
    while stack:
        obj = stack.pop()
        if id(obj) not in found and not isinstance(obj, graphs.LEAVES):
            found[id(obj)] = obj
            stack.extend(graphs.parts_of(obj))
    return found


@given(plan=graphs.plans(KINDS, size=14), roots=st.lists(st.integers(0, 13), min_size=1, max_size=6))
@settings(max_examples=500, deadline=None)
def test_no_copy_leads_to_the_original_of_something_that_was_copied(plan, roots):
    """The law that all tests above are cases of, whatever order things are visited in."""
    objects = graphs.build(plan)
    root = [objects[index % len(objects)] for index in roots]
    memo = {}
    twin = safepickle.deepcopy(root, memo)
    originals = reached(root)
    for obj in reached(twin).values():
        if id(obj) in originals:
            copied = memo.get(id(obj), obj)
            assert copied is obj, f"the copy leads to an original {type(obj).__name__}, which has a copy"


@given(plan=graphs.plans(KINDS, size=14), roots=st.lists(st.integers(0, 13), min_size=1, max_size=6))
@settings(max_examples=500, deadline=None)
def test_a_copied_graph_with_functions_has_the_shape_of_the_original(plan, roots):
    objects = graphs.build(plan)
    root = [objects[index % len(objects)] for index in roots]
    expected = graphs.shape(root)
    assert graphs.shape(safepickle.deepcopy(root)) == expected
    assert graphs.shape(root) == expected


@given(
    plan=graphs.plans(KINDS, size=14),
    roots=st.lists(st.integers(0, 13), min_size=2, max_size=6),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=300, deadline=None)
def test_what_is_shared_does_not_depend_on_the_order_of_the_visit(plan, roots, random):
    objects = graphs.build(plan)
    root = [objects[index % len(objects)] for index in roots]
    shuffled = random.sample(root, len(root))
    shared = []
    for order in (root, shuffled):
        originals = reached(order)
        twin = reached(safepickle.deepcopy(order))
        shared.append({number for number, obj in enumerate(objects) if id(obj) in originals and id(obj) in twin})
    assert shared[0] == shared[1]


@given(plan=graphs.plans(KINDS, size=10), protocol=st.sampled_from(PROTOCOLS))
@settings(max_examples=150, deadline=None)
def test_a_restored_graph_with_functions_has_the_shape_of_the_original(plan, protocol):
    objects = graphs.build(plan)
    restored = pickle.loads(safepickle.dumps(objects, protocol))
    assert _without_code(graphs.shape(restored)) == _without_code(graphs.shape(objects))


def _without_code(shape):
    """A restored function has code of its own."""
    return [(kind, value if kind is not types.FunctionType else None, parts) for kind, value, parts in shape]
