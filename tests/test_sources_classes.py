"""Classes that no name leads to, sent from one script to another."""

from __future__ import annotations

import gc
import pickle
import sys
import textwrap
from pathlib import Path

import pytest

import safepickle

from .helpers import run_python
from .travel import PROTOCOLS, travel


def round_trip(obj, protocol=None):
    return pickle.loads(safepickle.dumps(obj, protocol))


def test_methods_properties_and_class_attributes(tmp_path: Path) -> None:
    travel(
        """
        class Point:
            "A point."
            count = 7
            rows = [1]
            def __init__(self, x):
                self._x = x
            @property
            def x(self):
                "The abscissa."
                return self._x
            @x.setter
            def x(self, value):
                self._x = value
            @classmethod
            def zero(cls):
                return cls(0)
            @staticmethod
            def add(a, b):
                return a + b
            def __eq__(self, other):
                return self._x == other._x
            def __hash__(self):
                return hash(self._x)
            def __getattr__(self, name):
                if name.startswith("_"):
                    raise AttributeError(name)
                return name.upper()
            class Inner:
                def get(self):
                    return Point
        obj = Point, Point(3), Point.Inner()
        """,
        """
        Point, p, inner = obj
        assert type(p) is Point and p.x == 3 and Point.__doc__ == "A point." and Point.x.__doc__ == "The abscissa."
        p.x = 5
        assert p.x == 5 and Point.zero().x == 0 and Point.add(1, 2) == 3 and p.anything == "ANYTHING"
        assert Point(5) == p and {p: 1}[Point(5)] == 1 and Point.rows == [1] and Point.count == 7
        assert type(inner) is Point.Inner and inner.get() is Point and Point.Inner.__qualname__ == "Point.Inner"
        assert Point.__module__ == "__main__"
        """,
        tmp_path,
        home="""
        assert back[0] is Point and type(back[1]) is Point and type(back[2]) is Point.Inner
        """,
    )


def test_super_and_the_class_cell(tmp_path: Path) -> None:
    travel(
        """
        class A:
            def who(self):
                return ["A"]
        class B(A):
            def who(self):
                return super().who() + ["B"]
        class C(A):
            def who(self):
                return super().who() + ["C"]
        class D(B, C):
            def who(self):
                return super().who() + [__class__.__name__]
        obj = D()
        """,
        """
        assert obj.who() == ["A", "C", "B", "D"]
        """,
        tmp_path,
    )


def test_classes_that_hold_each_other_and_their_own_instances(tmp_path: Path) -> None:
    travel(
        """
        class Node:
            def __init__(self, v):
                self.v = v
            def other(self):
                return Leaf
        class Leaf(Node):
            def parent(self):
                return Node
        Node.leaf_type = Leaf
        Node.root = Node(0)
        Node.registry = {"leaf": Leaf, "self": Node}
        Leaf.default = Leaf(1)
        obj = Leaf(5)
        """,
        """
        Leaf = type(obj)
        Node = Leaf.__base__
        assert obj.other() is Leaf is Node.leaf_type and obj.parent() is Node is Node.registry["self"]
        assert type(Node.root) is Node and Node.root.v == 0 and type(Leaf.default) is Leaf and Leaf.default.v == 1
        """,
        tmp_path,
    )


# -- slots -------------------------------------------------------------------------------------------------------------


def test_slots_of_all_kinds(tmp_path: Path) -> None:
    travel(
        """
        class Plain:
            __slots__ = ("a", "__hidden")
            def __init__(self):
                self.a, self.__hidden = 1, 2
            def hidden(self):
                return self.__hidden
        class One:
            __slots__ = "only"
        class Documented:
            __slots__ = {"x": "The x."}
        class WithDict:
            __slots__ = ("a", "__dict__", "__weakref__")
        class Empty(Plain):
            __slots__ = ()
        class Open(Plain):
            pass
        class Consumed:
            __slots__ = iter(["a", "b"])
        plain, empty, open_, one, with_dict = Plain(), Empty(), Open(), One(), WithDict()
        one.only, open_.more, with_dict.a, with_dict.b = 1, 3, 1, 2
        obj = [plain, empty, open_, one, with_dict, Documented, Consumed]
        """,
        """
        import weakref
        plain, empty, open_, one, with_dict, Documented, Consumed = obj
        for instance in (plain, empty, open_):
            assert instance.a == 1 and instance.hidden() == 2
        for instance in (plain, empty, one):
            assert not hasattr(instance, "__dict__")
            try:
                instance.other = 1
            except AttributeError:
                pass
            else:
                raise AssertionError("takes any attribute")
        assert type(plain).__slots__ == ("a", "__hidden") and type(one).__slots__ == "only" and one.only == 1
        assert open_.more == 3 and (with_dict.a, with_dict.b) == (1, 2) and weakref.ref(with_dict)() is with_dict
        assert Documented.__slots__ == {"x": "The x."}
        c = Consumed()
        c.a = c.b = 1
        """,
        tmp_path,
    )


# -- hooks that must not run again -------------------------------------------------------------------------------------


def test_init_subclass_is_not_called_again(tmp_path: Path) -> None:
    travel(
        """
        class Base:
            calls = []
            def __init_subclass__(cls, *, tag, **options):
                super().__init_subclass__(**options)
                cls.tag = tag
                cls.attributes = sorted(name for name in vars(cls) if not name.startswith("__"))
                Base.calls.append(cls.__name__)
        class Child(Base, tag="child"):
            x = 1
            def get(self):
                return self.x, self.tag
        class Mixed(dict, Base, tag="mixed"):
            __slots__ = ("s",)
        class Error(Base, Exception, tag="error"):
            pass
        obj = [Child(), Mixed(a=1), Error("no"), Base]
        """,
        """
        child, mixed, error, Base = obj
        assert child.get() == (1, "child") and child.attributes == ["get", "tag", "x"]
        assert type(child).__bases__ == (Base,)
        assert mixed == {"a": 1} and type(mixed).__bases__ == (dict, Base) and mixed.tag == "mixed"
        assert error.args == ("no",) and type(error).__mro__[1:3] == (Base, Exception)
        assert Base.calls == ["Child", "Mixed", "Error"]
        assert {c.__name__ for c in Base.__subclasses__()} == set(Base.calls)
        class New(type(child), tag="new"):
            pass
        assert New.tag == "new" and Base.calls.pop() == "New", "the hook is gone"
        del New
        import gc
        gc.collect()
        """,
        tmp_path,
        home="""
        assert Base.calls == ["Child", "Mixed", "Error"]
        """,
    )


@pytest.mark.parametrize("bases", [
    "object", "Plain", "Slotted", "WithDict", "WithWeakref", "Plain, Slotted", "Slotted, Plain", "int", "str", "tuple",
    "list", "dict",
    "Exception", "type", "Generic[T]", "Plain, Generic[T]", "abc.ABC", "WithDict, WithWeakref", "Empty", "Empty, Plain",
    "random.Random", "datetime.date", "collections.OrderedDict", "threading.local", "ctypes.Structure",
    "Nothing, Plain",
])  # fmt: skip
def test_a_hook_of_any_base_stays_silent(bases: str, tmp_path: Path) -> None:
    travel(
        f"""
        import abc, collections, ctypes, datetime, random, threading
        from typing import Generic, TypeVar
        T = TypeVar("T")
        class Hook:
            __slots__ = ()
            calls = 0
            def __init_subclass__(cls, *, need, **options):
                super().__init_subclass__(**options)
                Hook.calls += 1
        class Plain: pass
        class Slotted: __slots__ = ("a", "b")
        class WithDict: __slots__ = ("__dict__",)
        class WithWeakref: __slots__ = ("__weakref__",)
        class Empty: __slots__ = ()
        class Nothing: __slots__ = ()
        class First(Hook, {bases}, need=1):
            def get(self): return "first"
        class Last({bases if bases != "object" else "Plain"}, Hook, need=2):
            def get(self): return "last"
        class Child(Last, need=3):
            __slots__ = () if {"threading" in bases} else ("own",) if First.__itemsize__ == 0 else ()
        Hook.total = Hook.calls
        Hook.orders = [[c.__name__ for c in cls.__mro__] for cls in (First, Last, Child)]
        obj = First, Last, Child
        """,
        f"""
        First, Last, Child = obj
        Hook = First.__mro__[1]
        assert Hook.calls == Hook.total, Hook.calls
        assert [[c.__name__ for c in cls.__mro__] for cls in obj] == Hook.orders
        assert First.get(None) == "first" and Child.get(None) == "last"
        assert First in Hook.__subclasses__() and Child.__bases__ == (Last,)
        if {bases!r} not in ("type", "datetime.date"):
            First(), Last(), Child()
            import gc
            gc.collect()
        """,
        tmp_path,
    )


def test_set_name_is_not_called_again(tmp_path: Path) -> None:
    travel(
        """
        class Field:
            names = []
            def __set_name__(self, owner, name):
                self.name = name
                Field.names.append(name)
            def __get__(self, instance, owner):
                return self if instance is None else instance.__dict__.get(self.name, 0)
            def __set__(self, instance, value):
                instance.__dict__[self.name] = value + 1
        shared = Field()
        class Record:
            a = shared
            b = shared
            c = Field()
        obj = Record()
        obj.c = 1
        """,
        """
        Record = type(obj)
        Field = type(Record.a)
        assert Record.a is Record.b and Record.a.name == "b" and Field.names == ["a", "b", "c"]
        obj.c = 5
        assert obj.c == 6
        """,
        tmp_path,
    )


def test_metaclasses_with_arguments_and_methods_of_their_own(tmp_path: Path) -> None:
    travel(
        """
        class Meta(type):
            made = []
            @classmethod
            def __prepare__(metacls, name, bases, *, prefix):
                return {"prepared": prefix}
            def __new__(metacls, name, bases, namespace, *, prefix):
                cls = super().__new__(metacls, prefix + name, bases, namespace)
                cls.secret = 5
                return cls
            def __init__(cls, name, bases, namespace, *, prefix):
                super().__init__(name, bases, namespace)
                cls.length = len(namespace)
                Meta.made.append(cls)
            def __call__(cls, *args):
                made = super().__call__(*args)
                made.tracked = True
                return made
            @property
            def label(cls):
                return "label of " + cls.__name__
            def __len__(cls):
                return cls.length
        class Thing(metaclass=Meta, prefix="My"):
            def get(self):
                return self.secret
        obj = Thing, Thing()
        """,
        """
        Thing, thing = obj
        Meta = type(Thing)
        assert Thing.__name__ == "MyThing" and Thing.__qualname__ == "Thing" and Thing.prepared == "My"
        assert len(Thing) == Thing.length
        assert Thing.label == "label of MyThing" and thing.get() == 5 and Thing().tracked and Meta.made == [Thing]
        class New(Thing, prefix="New"):
            pass
        assert New.__name__ == "NewNew" and Meta.made.pop() is New
        """,
        tmp_path,
        home="""
        assert back[0] is Thing and Meta.made == [Thing]
        """,
    )


def test_class_attributes_with_the_name_of_a_property_of_the_metaclass(tmp_path: Path) -> None:
    travel(
        """
        class Meta(type):
            @property
            def label(cls):
                return "of the metaclass"
            def __setattr__(cls, name, value):
                raise RuntimeError("read only")
        class Thing(metaclass=Meta):
            label = "of the instances"
            other = 1
            @property
            def __class__(self):
                return int
        obj = Thing
        """,
        """
        thing = obj()
        assert thing.label == "of the instances" and obj.label == "of the metaclass"
        assert isinstance(thing, int) and thing.other == 1 and type(thing) is obj
        """,
        tmp_path,
    )


def test_a_metaclass_that_defines_how_to_pickle_or_copy_is_a_metaclass(tmp_path: Path) -> None:
    travel(
        """
        class Meta(type):
            def __reduce__(cls):
                raise RuntimeError("is about instances of the metaclass, and pickle never asks it")
            def __getstate__(cls):
                raise RuntimeError("must not be asked")
            def __eq__(cls, other):
                raise RuntimeError("must not be compared")
            __hash__ = type.__hash__
        class Thing(metaclass=Meta):
            x = 1
        obj = Thing
        """,
        """
        assert obj.x == 1 and type(obj).__name__ == "Meta"
        """,
        tmp_path,
        home="""
        import copy
        assert back is Thing and safepickle.deepcopy([Thing])[0] is Thing
        """,
    )


# -- abstract classes --------------------------------------------------------------------------------------------------


def test_abstract_classes_and_what_is_registered_with_them(tmp_path: Path) -> None:
    travel(
        """
        import abc, collections.abc
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
            @property
            @abc.abstractmethod
            def name(self): ...
            @classmethod
            def __subclasshook__(cls, other):
                return True if hasattr(other, "fake_shape") else NotImplemented
        class Half(Shape):
            def area(self):
                return 1
        class Square(Half):
            name = "square"
        class Outsider:
            pass
        Shape.register(Outsider)
        Shape.register(int)
        class Fake:
            fake_shape = True
        class Items(collections.abc.Sequence):
            def __init__(self, *items):
                self.items = items
            def __len__(self):
                return len(self.items)
            def __getitem__(self, i):
                return self.items[i]
        isinstance(3.5, Shape)
        obj = Shape, Half, Square(), Outsider(), Fake(), Items(1, 2)
        """,
        """
        import collections.abc
        Shape, Half, square, outsider, fake, items = obj
        for abstract in (Shape, Half):
            try:
                abstract()
            except TypeError as error:
                assert "name" in str(error)
            else:
                raise AssertionError("not abstract any more")
        assert type(square)().area() == 1 and Shape.__abstractmethods__ == {"area", "name"}
        assert Half.__abstractmethods__ == {"name"}
        assert type(square).__abstractmethods__ == frozenset()
        assert isinstance(square, Shape) and isinstance(outsider, Shape) and isinstance(3, Shape)
        assert isinstance(fake, Shape)
        assert not isinstance(3.5, Shape) and not isinstance(outsider, Half)
        assert list(reversed(items)) == [2, 1] and isinstance(items, collections.abc.Sequence) and items.index(2) == 1
        """,
        tmp_path,
    )


# -- generics, protocols, named tuples, typed dictionaries -------------------------------------------------------------


def test_an_abstract_class_and_its_only_instance(tmp_path: Path) -> None:
    travel(
        """
        import abc
        class Service(abc.ABC):
            only = None
            def __new__(cls):
                if cls.only is None:
                    cls.only = super().__new__(cls)
                return cls.only
            @abc.abstractmethod
            def run(self): ...
        class Real(Service):
            def run(self):
                return "runs"
        class Half(Service):
            pass
        obj = {"service": Real(), "half": Half}
        """,
        """
        service, half = obj["service"], obj["half"]
        assert service.run() == "runs" and type(service)() is service and type(service).only is service
        try:
            half()
        except TypeError as error:
            assert "abstract" in str(error)
        else:
            raise AssertionError("no longer abstract")
        """,
        tmp_path,
    )


def test_a_class_that_holds_instances_which_are_restored_by_its_own_methods(tmp_path: Path) -> None:
    travel(
        """
        import dataclasses
        class Unit:
            known = {}
            def __init__(self, name):
                self.name, self.way = name, "init"
                Unit.known[self] = name
            def __getstate__(self):
                return (self.name,)
            def __setstate__(self, state):
                (self.name,), self.way = state, "setstate"
            def __hash__(self):
                return hash(self.name)
            def __eq__(self, other):
                return self.name == other.name
        Unit.base = Unit("m")
        @dataclasses.dataclass(frozen=True, slots=True)
        class Point:
            x: int
            def double(self):
                return 2 * self.x
            def zero(self):
                return ORIGIN
        Point.ONE, ORIGIN = Point(1), Point(0)
        obj = {"unit": Unit.base, "other": Unit("s"), "point": Point(2)}
        """,
        """
        unit, other, point = obj["unit"], obj["other"], obj["point"]
        Unit, Point = type(unit), type(point)
        assert all((one.name, one.way) == ("m", "setstate") for one in (unit, Unit.base))
        assert Unit.known[unit] == "m" and Unit.known[other] == "s" and len(Unit.known) == 2
        assert Point.ONE.double() == 2 and point.double() == 4 and type(Point.ONE) is type(point.zero()) is Point
        assert point.zero().x == 0
        """,
        tmp_path,
    )


def test_generics_and_type_variables(tmp_path: Path) -> None:
    travel(
        """
        from typing import Callable, Generic, Optional, TypeVar, Dict, List
        import typing
        T = TypeVar("T")
        Number = TypeVar("Number", int, float)
        Bound = TypeVar("Bound", bound="Stack", covariant=True)
        class Stack(Generic[T]):
            items: List[T]
            def __init__(self, *items: T):
                self.items = list(items)
            def top(self) -> Optional[T]:
                return self.items[-1] if self.items else None
        class Numbers(Stack[Number], Generic[Number]):
            pass
        class Pairs(Generic[T, Number], Dict[T, Number]):
            pass
        if hasattr(typing, "ParamSpec"):
            from typing import ParamSpec
            P = ParamSpec("P")
            class Wrapped(Generic[P, T]):
                def __init__(self, f: Callable[P, T]):
                    self.f = f
            wrapped = Wrapped[[int], str](str)
        obj = [
            Stack, Stack[int], Stack(1, 2), Numbers, Pairs, T, Number, Bound, wrapped, List[T], Callable[[T], Number],
            Stack[T],
        ]
        """,
        """
        import typing
        Stack, of_int, stack, Numbers, Pairs, T, Number, Bound, wrapped, list_of_t, call, of_t = obj
        assert Stack.__parameters__ == (T,) and Numbers.__parameters__ == (Number,)
        assert Pairs.__parameters__ == (T, Number)
        assert of_int.__origin__ is Stack and of_int.__args__ == (int,) and type(stack) is Stack and stack.top() == 2
        assert Stack.__orig_bases__ == (typing.Generic[T],) and Numbers[int].__args__ == (int,)
        assert Number.__constraints__ == (int, float) and Bound.__covariant__
        assert Bound.__bound__.__forward_arg__ == "Stack"
        assert list_of_t.__parameters__ == (T,) and call.__parameters__ == (T, Number) and of_t.__args__ == (T,)
        assert wrapped.f(1) == "1" and T.__module__ == "__main__" and typing.get_type_hints(Stack.top, vars(typing))
        """,
        tmp_path,
        home="""
        assert back[5] is T and back[0] is Stack and back[1] == Stack[int]
        """,
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TypeVarTuple came with Python 3.11")
def test_variadic_generics(tmp_path: Path) -> None:
    travel(
        """
        from typing import Generic, TypeVarTuple, Unpack
        Ts = TypeVarTuple("Ts")
        class Array(Generic[Unpack[Ts]]):
            def shape(self, *args: *Ts) -> tuple[*Ts]:
                return args
        obj = Array, Ts, Array[int, str]
        """,
        """
        Array, Ts, alias = obj
        assert Array.__parameters__ == (Ts,) and alias.__args__ == (int, str) and Array().shape(1, 2) == (1, 2)
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 695 came with Python 3.12")
def test_new_syntax_for_generics(tmp_path: Path) -> None:
    travel(
        """
        class Base: pass
        class Box[T: Base, *Ts, **P]:
            def __init__(self, item: T):
                self.item = item
            def map[U](self, f) -> "Box[U]":
                return Box(f(self.item))
            def kinds(self):
                return T
        def first[T](items: list[T]) -> T:
            return items[0]
        type Pair[A] = tuple[A, A]
        type Table = dict[str, Pair[int]]
        obj = [Box, Box(3), first, Pair, Table, Box[Base, int, [str]]]
        """,
        """
        Box, box, first, Pair, Table, alias = obj
        T, Ts, P = Box.__type_params__
        assert Box.__parameters__ == (T, Ts, P) and T.__bound__.__name__ == "Base" and box.kinds() is T
        assert box.map(lambda x: x + 1).item == 4 and first([7]) == 7 and first.__type_params__[0].__name__ == "T"
        assert first.__annotations__["return"] is first.__type_params__[0]
        assert Pair.__name__ == "Pair" and Pair.__module__ == "__main__" and Pair[int].__args__ == (int,)
        assert Table.__value__ == dict[str, Pair[int]] and alias.__origin__ is Box
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 695 came with Python 3.12")
def test_a_type_alias_that_mentions_itself_is_refused_with_a_reason() -> None:
    run_python(
        """
        import safepickle
        type Tree = list[Tree]
        try:
            safepickle.dumps(Tree)
        except safepickle.PicklingError as error:
            assert "type alias __main__.Tree" in str(error) and "module" in str(error)
        else:
            raise AssertionError("pickled")
        """
    )


@pytest.mark.skipif(sys.version_info < (3, 13), reason="PEP 696 came with Python 3.13")
def test_type_variables_with_defaults(tmp_path: Path) -> None:
    travel(
        """
        class Box[T = int, *Ts = *tuple[int, str]]:
            pass
        obj = Box
        """,
        """
        T, Ts = obj.__type_params__
        assert T.__default__ is int and Ts.has_default() and obj[str].__args__[0] is str
        """,
        tmp_path,
    )


def test_protocols(tmp_path: Path) -> None:
    travel(
        """
        from typing import Protocol, TypeVar, runtime_checkable
        T = TypeVar("T", covariant=True)
        @runtime_checkable
        class Closes(Protocol):
            def close(self) -> None: ...
        @runtime_checkable
        class Named(Protocol):
            name: str
        class Source(Protocol[T]):
            def get(self) -> T: ...
        class Door(Closes):
            def close(self):
                return "shut"
        class Other:
            def close(self): ...
        obj = [Closes, Named, Source, Door(), Other(), Source[int]]
        """,
        """
        Closes, Named, Source, door, other, alias = obj
        assert isinstance(other, Closes) and isinstance(door, Closes) and not isinstance(3, Closes)
        assert issubclass(type(other), Closes)
        other.name = "n"
        assert isinstance(other, Named) and not isinstance(door, Named) and door.close() == "shut"
        assert Source._is_protocol and not type(door)._is_protocol and len(Source.__parameters__) == 1
        assert alias.__origin__ is Source
        try:
            Closes()
        except TypeError:
            pass
        else:
            raise AssertionError("a protocol was instantiated")
        """,
        tmp_path,
    )


def test_named_tuples_of_both_kinds(tmp_path: Path) -> None:
    travel(
        """
        import collections, typing
        Plain = collections.namedtuple("Plain", "x y", defaults=[9])
        Renamed = collections.namedtuple("Renamed", ["a", "def", "a"], rename=True)
        class Point(typing.NamedTuple):
            "A point."
            x: int
            y: "int" = 2
            def norm(self):
                return abs(self.x) + abs(self.y)
            @property
            def twice(self):
                return Point(2 * self.x, 2 * self.y)
        class Child(collections.namedtuple("Child", "a b")):
            __slots__ = ()
            def total(self):
                return self.a + self.b
        Plain.x.__doc__ = "The x."
        obj = [Plain(1), Renamed(1, 2, 3), Point(3), Child(1, 2)]
        """,
        """
        import copy
        plain, renamed, point, child = obj
        assert plain == (1, 9) and type(plain)._fields == ("x", "y") and type(plain).x.__doc__ == "The x."
        assert renamed._fields == ("a", "_1", "_2") and renamed._1 == 2
        assert point == (3, 2) and point.norm() == 5 and point.twice == (6, 4) and type(point).__doc__ == "A point."
        assert point._replace(y=0) == (3, 0) and point._asdict() == {"x": 3, "y": 2}
        assert repr(point) == "Point(x=3, y=2)"
        assert type(point).__annotations__["x"] is int and type(point).__new__.__annotations__["x"] is int
        assert type(point)._field_defaults == {"y": 2} and type(point)._make([1, 2]).norm() == 3
        assert type(point)(1).y == 2
        assert child.total() == 3 and type(child).__bases__[0].__name__ == "Child" and copy.copy(child) == child
        assert type(point).__module__ == type(plain).__module__ == "__main__"
        assert type(point).__match_args__ == ("x", "y")
        """,
        tmp_path,
    )


def test_typed_dictionaries_and_new_types(tmp_path: Path) -> None:
    travel(
        """
        from typing import NewType, TypedDict
        UserId = NewType("UserId", int)
        AdminId = NewType("AdminId", UserId)
        class Movie(TypedDict):
            title: str
        class Full(Movie, total=False):
            year: int
        Old = TypedDict("Old", {"in": int})
        obj = [Full, Movie(title="x"), UserId, AdminId, Old]
        """,
        """
        import typing
        Full, movie, UserId, AdminId, Old = obj
        assert Full(title="a", year=1) == {"title": "a", "year": 1} and movie == {"title": "x"}
        assert Full.__required_keys__ == {"title"} and Full.__optional_keys__ == {"year"} and typing.is_typeddict(Full)
        assert typing.get_type_hints(Full) == {"title": str, "year": int} and Old.__annotations__.keys() == {"in"}
        assert UserId(3) == 3 and AdminId.__supertype__ is UserId and UserId.__supertype__ is int
        assert UserId.__name__ == "UserId" and UserId.__module__ == "__main__"
        """,
        tmp_path,
        home="""
        assert back[2] is UserId and back[0] is Full
        """,
    )


# -- dataclasses -------------------------------------------------------------------------------------------------------


def test_dataclasses(tmp_path: Path) -> None:
    travel(
        """
        import dataclasses, typing
        from dataclasses import dataclass, field, KW_ONLY, InitVar
        @dataclass
        class Config:
            lr: float
            tags: list = field(default_factory=list, metadata={"doc": "labels"})
            kind: typing.ClassVar[str] = "cfg"
            double: InitVar[bool] = False
            _: KW_ONLY
            seed: int = 0
            def __post_init__(self, double):
                if double:
                    self.lr *= 2
        @dataclass(frozen=True, order=True, slots=True)
        class Key:
            a: int
            b: str = field(default="b", compare=False)
        @dataclass(kw_only=True, eq=False, repr=False)
        class Child(Config):
            extra: "int" = 5
        made = dataclasses.make_dataclass("Made", [("x", int), ("y", int, 3)])
        obj = [Config(0.5, ["a"], True, seed=3), Key(1), Child(lr=1.0), made(1), Config, Key]
        """,
        """
        import dataclasses
        config, key, child, made, Config, Key = obj
        assert config == Config(1.0, ["a"], seed=3) and config.lr == 1.0 and type(config) is Config
        assert [f.name for f in dataclasses.fields(config)] == ["lr", "tags", "seed"] and Config.kind == "cfg"
        assert dataclasses.asdict(config) == {"lr": 1.0, "tags": ["a"], "seed": 3}
        assert dataclasses.fields(Config)[1].metadata == {"doc": "labels"} and dataclasses.fields(Config)[2].kw_only
        assert dataclasses.replace(config, lr=2.0, double=True).lr == 4.0 and Config(1.0).tags == []
        assert Config(1.0).tags is not Config(1.0).tags
        assert Key(1) < Key(2) and Key(1, "x") == Key(1, "y") and hash(Key(1)) == hash(Key(1, "z"))
        assert Key.__slots__ == ("a", "b")
        try:
            key.a = 2
        except dataclasses.FrozenInstanceError:
            pass
        else:
            raise AssertionError("not frozen")
        assert child == type(child)(lr=1.0) and child.extra == 5 and "__eq__" not in vars(type(child))
        assert made == type(made)(1) and made.y == 3
        @dataclasses.dataclass
        class More(Config):
            more: int = 1
        assert [f.name for f in dataclasses.fields(More)] == ["lr", "tags", "seed", "more"]
        assert More(1.0, more=2).more == 2, "the markers of the fields are others"
        """,
        tmp_path,
        home="""
        assert back[4] is Config and back[0] == obj[0]
        """,
    )


def test_methods_that_were_generated_under_a_file_name_of_their_own(tmp_path: Path) -> None:
    travel(
        """
        import linecache
        def define(cls):
            text = "def __init__(self, a, b=default):\\n    self.a = a\\n    self.b = b\\n"
            name = f"<generated init {cls.__module__}.{cls.__qualname__}>"
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
            space = {"default": 7}
            exec(compile(text, name, "exec"), space)
            cls.__init__ = space["__init__"]
            cls.__init__.__qualname__ = cls.__qualname__ + ".__init__"
            return cls
        @define
        class Thing:
            pass
        obj = Thing(1)
        """,
        """
        import inspect
        assert (obj.a, obj.b) == (1, 7) and type(obj)(3, 4).b == 4
        assert inspect.getsource(type(obj).__init__).startswith("def __init__(self, a, b=default):")
        """,
        tmp_path,
    )


# -- exceptions and classes with ways of their own ---------------------------------------------------------------------


def test_exceptions_of_a_script(tmp_path: Path) -> None:
    travel(
        """
        class AppError(Exception):
            def __init__(self, message, code=5):
                super().__init__(message)
                self.code = code
            def __str__(self):
                return f"{self.args[0]} ({self.code})"
        class Missing(AppError, KeyError):
            pass
        obj = [AppError("bad", 7), Missing("m")]
        """,
        """
        bad, missing = obj
        assert str(bad) == "bad (7)" and str(missing) == "m (5)" and isinstance(missing, KeyError)
        try:
            raise missing
        except type(bad) as error:
            assert error is missing
        """,
        tmp_path,
    )


def test_instances_with_ways_of_their_own(tmp_path: Path) -> None:
    travel(
        """
        import copyreg
        class Reduced:
            def __init__(self, x):
                self.x = x
            def __reduce__(self):
                return Reduced, (self.x + 1,)
        class Stated:
            def __getstate__(self):
                return {"y": 5}
            def __setstate__(self, state):
                self.z = state["y"]
        class New(int):
            def __new__(cls, value, label):
                made = super().__new__(cls, value)
                made.label = label
                return made
            def __getnewargs__(self):
                return int(self), self.label
        class Registered:
            pass
        def rebuild(n):
            made = Registered()
            made.n = n
            return made
        copyreg.pickle(Registered, lambda r: (rebuild, (3,)))
        class Called(list):
            def __init__(self, *items):
                super().__init__(items)
        obj = [Reduced(1), Stated(), New(5, "five"), Registered(), Called(1, 2)]
        """,
        """
        reduced, stated, new, registered, called = obj
        assert reduced.x == 2 and stated.z == 5 and not hasattr(stated, "y")
        assert new == 5 and new.label == "five" and registered.n == 3 and called == [1, 2]
        """,
        tmp_path,
    )


def test_descriptors_and_borrowed_descriptors(tmp_path: Path) -> None:
    travel(
        """
        import functools, types
        class Slotted:
            __slots__ = ("value",)
        class Thing:
            borrowed = int.__add__
            upper = str.upper
            init = object.__init__
            make = dict.fromkeys
            slot = Slotted.value
            real = int.real
            size = len
            @functools.cached_property
            def slow(self):
                self.calls = getattr(self, "calls", 0) + 1
                return self.calls
            @functools.lru_cache(maxsize=3)
            def cached(self):
                return 5
            @functools.singledispatchmethod
            def kind(self, x):
                return "any"
            @kind.register
            def _(self, x: int):
                return "int"
        obj = Thing(), Thing
        """,
        """
        thing, Thing = obj
        assert Thing.borrowed(1, 2) == 3 and Thing.upper("a") == "A" and thing.make("a") == {"a": None}
        assert Thing.size([1]) == 1
        assert (thing.slow, thing.slow) == (1, 1) and thing.cached() == 5
        assert (thing.kind(1), thing.kind("")) == ("int", "any")
        assert type(Thing.slot).__name__ == "member_descriptor" and Thing.real is int.real
        assert Thing.init is object.__init__
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the layout is the platform's")
def test_structures_of_ctypes(tmp_path: Path) -> None:
    travel(
        """
        import ctypes
        class Pair(ctypes.Structure):
            _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_double)]
            def total(self):
                return self.a + self.b
        obj = Pair(1, 2.5)
        """,
        """
        import ctypes
        assert obj.total() == 3.5 and ctypes.sizeof(obj) == 16 and type(obj)(2, 0.0).a == 2
        """,
        tmp_path,
    )


# -- which class is it? ------------------------------------------------------------------------------------------------


def test_two_payloads_of_one_class_give_one_class(tmp_path: Path) -> None:
    run_python(
        f"""
        import safepickle
        class Box:
            count = 0
            def __init__(self, v):
                self.v = v
                Box.count += 1
        for i in range(2):
            open(r"{tmp_path}/{{}}".format(i), "wb").write(safepickle.dumps(Box(i)))
        """
    )
    run_python(
        f"""
        import pickle, safepickle
        one = pickle.load(open(r"{tmp_path}/0", "rb"))
        type(one).count = 50
        two = pickle.load(open(r"{tmp_path}/1", "rb"))
        assert type(one) is type(two) and (one.v, two.v) == (0, 1)
        assert type(one).count == 50, "loading has reset the state of a class that lives here"
        again = pickle.loads(safepickle.dumps(two))
        assert type(again) is type(two) and type(one).count == 50
        """
    )


def test_the_class_at_home_keeps_its_state() -> None:
    class Local:
        counter = 0

    data = safepickle.dumps(Local())
    Local.counter = 9
    Local.added = lambda self: 1
    back = pickle.loads(data)
    assert type(back) is Local and Local.counter == 9 and back.added() == 1


def test_a_class_that_went_away_and_came_home_is_the_same(tmp_path: Path) -> None:
    away = tmp_path / "away.pkl"
    run_python(
        f"""
        import pickle, safepickle, subprocess, sys
        class Box:
            def __init__(self, v):
                self.v = v
        open(r"{away}", "wb").write(safepickle.dumps(Box(1)))
        code = '''
        import pickle, safepickle
        box = pickle.load(open(r"{away}", "rb"))
        box.v += 1
        open(r"{away}", "wb").write(safepickle.dumps([box, type(box)]))
        '''
        import textwrap
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=50)
        box, cls = pickle.load(open(r"{away}", "rb"))
        assert cls is Box is type(box) and box.v == 2
        """
    )


def test_a_script_that_is_run_again_knows_its_class(tmp_path: Path) -> None:
    define = """
        import dataclasses, enum, pickle, sys, typing
        import safepickle
        T = typing.TypeVar("T")
        class Mode(enum.Enum):
            A = 1
        @dataclasses.dataclass
        class Config:
            lr: float
            mode: Mode = Mode.A
            def twice(self):
                return 2 * self.lr
        class Pair(typing.NamedTuple):
            a: int
        Id = typing.NewType("Id", int)
        class Box(typing.Generic[T]):
            pass
    """
    file = tmp_path / "state.pkl"
    run_python(
        define
        + f"""
        open(r"{file}", "wb").write(safepickle.dumps([Config(0.5), Mode.A, Pair(1), T, Id, Box]))
    """
    )
    run_python(
        "# a comment that moves all lines\n"
        + textwrap.dedent(define)
        + textwrap.dedent(f"""
        config, mode, pair, t, new_type, box = pickle.load(open(r"{file}", "rb"))
        assert type(config) is Config and config == Config(0.5) and mode is Mode.A and type(pair) is Pair
        assert t is T and new_type is Id and box is Box
        assert Config.twice.__code__.co_filename == __file__, "the class here was changed"
    """)
    )
    run_python(
        textwrap.dedent(define).replace("2 * self", "3 * self")
        + textwrap.dedent(f"""
        config, mode, pair, t, new_type, box = pickle.load(open(r"{file}", "rb"))
        assert type(config) is not Config and config.twice() == 1.0 and Config(0.5).twice() == 1.5
        assert mode is Mode.A and type(config).mode is Mode.A
    """)
    )


def test_classes_of_one_factory_are_never_confused(tmp_path: Path) -> None:
    travel(
        """
        def make(n, base=object):
            class Made(base):
                def get(self):
                    return n
            return Made
        one, two, again = make(1), make(2), make(1)
        obj = [one(), two(), again(), make(3, dict)(), one]
        """,
        """
        a, b, c, d, one = obj
        assert (a.get(), b.get(), c.get(), d.get()) == (1, 2, 1, 3)
        assert len({type(x) for x in obj[:4]}) == 4 and type(a) is one and one.__qualname__ == "make.<locals>.Made"
        """,
        tmp_path,
        home="""
        assert [type(x) for x in back[:3]] == [one, two, again]
        """,
    )


def test_a_class_that_was_defined_again_does_not_replace_the_older_one(tmp_path: Path) -> None:
    travel(
        """
        import linecache
        def cell(number, text):
            name = f"<cell {number}>"
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
            exec(compile(text, name, "exec"), globals())
        cell(1, "class Box:\\n    def area(self):\\n        return 2\\ndef f():\\n    return 2\\n")
        old, old_f = Box(), f
        cell(2, "class Box:\\n    def area(self):\\n        return 1000\\ndef f():\\n    return 1000\\n")
        new = Box()
        Old = type(old)
        obj = [old, new, old_f, f]
        """,
        """
        old, new, old_f, f = obj
        assert (old.area(), new.area(), old_f(), f()) == (2, 1000, 2, 1000)
        """,
        tmp_path,
        home="""
        assert type(back[0]) is Old and type(back[1]) is Box
        """,
    )


def test_a_class_is_collected_when_nobody_needs_it() -> None:
    import weakref

    def make():
        class Local:
            pass

        return Local

    cls = make()
    data = safepickle.dumps(cls)
    ref = weakref.ref(cls)
    del cls
    gc.collect()
    assert ref() is None
    assert pickle.loads(data).__name__ == "Local"


def test_threads_that_load_one_class_get_it_whole(tmp_path: Path) -> None:
    file = tmp_path / "box.pkl"
    run_python(
        f"""
        import safepickle
        class Box:
            {"; ".join(f"a{i} = {i}" for i in range(200))}
            def get(self):
                return self.a199
        open(r"{file}", "wb").write(safepickle.dumps([Box() for _ in range(10)]))
        """
    )
    run_python(
        f"""
        import pickle, sys, threading
        sys.setswitchinterval(1e-6)
        data = open(r"{file}", "rb").read()
        start = threading.Barrier(8)
        classes, errors = [], []
        def work():
            start.wait()
            try:
                boxes = pickle.loads(data)
                assert all(box.get() == 199 for box in boxes)
                classes.append(type(boxes[0]))
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work) for _ in range(8)]
        [t.start() for t in threads]
        [t.join(30) for t in threads]
        assert not errors, errors
        assert len(set(classes)) == 1 and len(classes) == 8
        """
    )


# -- by reference, or not at all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "cls",
    [int, type(None), type(...), type(NotImplemented), type(lambda: 0), type(len), type(gc), type(iter([])).__mro__[1]],
)
def test_builtin_types(cls: type, protocol: int) -> None:
    assert round_trip(cls, protocol) is cls


def test_a_class_made_in_c_is_refused_with_a_reason() -> None:
    iterator = type(iter([]))
    with pytest.raises(pickle.PicklingError, match="list_iterator"):
        safepickle.dumps(iterator)


def test_a_class_whose_name_leads_elsewhere_goes_by_its_other_name(tmp_path: Path) -> None:
    (tmp_path / "generated.py").write_text(
        "def make(dtype):\n    class Op:\n        kind = dtype\n    return Op\n"
        "op_float = make('float')\nop_int = make('int')\n"
    )
    travel(
        """
        import generated
        obj = generated.op_float, generated.op_int()
        """,
        """
        import generated
        assert obj[0] is generated.op_float and type(obj[1]) is generated.op_int
        """,
        tmp_path,
        pythonpath=[tmp_path],
    )


def test_both_verbs_leave_classes_as_they_are() -> None:
    class Local:
        rows = [1]

    twin = safepickle.deepcopy([Local, Local()])
    assert twin[0] is Local and type(twin[1]) is Local and safepickle.copy(Local) is Local


# -- of libraries -----------------------------------------------------------------------------------------------------


def test_functions_with_a_gradient_of_their_own_are_counted_where_they_are_loaded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    travel(
        """
        import torch
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return 2 * x
            @staticmethod
            def backward(ctx, g):
                return 20 * g
        obj = [Double, Double.apply]
        import safepickle
        assert b"_autograd_function_id" not in safepickle.dumps(obj)
        """,
        """
        import torch
        class Own(torch.autograd.Function):
            pass
        Double, apply = obj
        assert Double._backward_cls._autograd_function_id != Own._backward_cls._autograd_function_id
        assert Double._backward_cls._forward_cls is Double and Double._backward_cls.__name__ == "DoubleBackward"
        x = torch.ones(2, requires_grad=True)
        y = apply(x)
        y.sum().backward()
        assert y.tolist() == [2.0, 2.0] and x.grad.tolist() == [20.0, 20.0]
        """,
        tmp_path,
        timeout=100,
    )


def test_registries_of_instances_on_a_class(tmp_path: Path) -> None:
    travel(
        """
        import threading, weakref
        class Tracked:
            alive = weakref.WeakSet()
            by_name = weakref.WeakValueDictionary()
            lock = threading.Lock()
            everything = {}
            def __init__(self, name):
                self.name = name
                Tracked.alive.add(self)
                Tracked.by_name[name] = self
                Tracked.everything[name] = weakref.ref(self)
        obj = [Tracked("a"), Tracked("b")]
        """,
        """
        if protocol != 2:
            continue  # the class is known by now, and its state is its own
        a, b = obj
        Tracked = type(a)
        assert set(Tracked.alive) == {a, b} and Tracked.by_name["a"] is a and Tracked.everything["b"]() is b
        assert Tracked.lock.acquire(timeout=1)
        Tracked.lock.release()
        c = Tracked("c")
        assert c in Tracked.alive and len(Tracked.by_name) == 3
        del c
        assert len(Tracked.alive) == 2
        obj = a = b = None
        """,
        tmp_path,
    )


def test_a_frozen_dataclass_with_slots_below_another_one(tmp_path: Path) -> None:
    travel(
        """
        import dataclasses
        @dataclasses.dataclass(frozen=True, slots=True)
        class A:
            x: int
        @dataclasses.dataclass(frozen=True, slots=True)
        class B(A):
            y: int = 2
        obj = B(1)
        """,
        """
        assert obj.x == 1 and obj.y == 2 and hash(obj) == hash(type(obj)(1)) and not hasattr(obj, "__dict__")
        assert type(obj).__slots__ == ("y",) or type(obj).__slots__ == ("x", "y")
        """,
        tmp_path,
    )


def test_thousands_of_classes_and_functions_that_lead_to_each_other(tmp_path: Path) -> None:
    travel(
        """
        class Top:
            depth = 0
        cls = Top
        for i in range(300):
            cls = type(f"C{i}", (cls,), {"up": cls, "depth": i + 1})
        space = {}
        exec("\\n".join(f"def f{i}(): return f{i + 1}" for i in range(1500)) + "\\ndef f1500(): return 7", space)
        closure = lambda: 0
        for i in range(3000):
            closure = (lambda inner: lambda: inner)(closure)
        obj = [cls, space["f0"], closure]
        """,
        """
        cls, f, closure = obj
        assert cls.depth == 300 and cls.up.depth == 299 and len(cls.__mro__) == 302
        count = 0
        while callable(f):
            f, count = f(), count + 1
        assert (f, count) == (7, 1501)
        count = 0
        while callable(closure):
            closure, count = closure(), count + 1
        assert (closure, count) == (0, 3001)
        """,
        tmp_path,
    )
