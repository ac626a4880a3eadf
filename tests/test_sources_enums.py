"""Enumerations that no name leads to, sent from one script to another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .travel import travel


def test_members_are_found_by_name_value_and_identity(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class Color(enum.Enum):
            "Colours."
            RED = 1
            GREEN = "g"
            CRIMSON = RED
            LIST = [1, 2]
            PAIR = (1, 2)
            def darker(self):
                return f"dark {self.name}"
            @property
            def first(self):
                return Color.RED
            @classmethod
            def _missing_(cls, value):
                return cls.GREEN if value == "?" else None
            @staticmethod
            def helper():
                return 5
        obj = [Color, Color.RED, Color.CRIMSON, {Color.GREEN: 1}, Color.PAIR]
        """,
        """
        Color, red, crimson, table, pair = obj
        assert red is Color.RED is Color(1) is Color["CRIMSON"] and crimson is red and table[Color.GREEN] == 1
        assert [m.name for m in Color] == ["RED", "GREEN", "LIST", "PAIR"]
        assert list(Color.__members__) == ["RED", "GREEN", "CRIMSON", "LIST", "PAIR"]
        assert Color([1, 2]) is Color.LIST and Color((1, 2)) is pair and pair.value == (1, 2)
        assert Color.__doc__ == "Colours."
        assert red.darker() == "dark RED" and Color.GREEN.first is red and Color("?") is Color.GREEN
        assert Color.helper() == 5
        assert isinstance(red, Color) and type(red) is Color and str(red) == "Color.RED" and red != 1
        assert len(Color) == 4
        try:
            Color(99)
        except ValueError:
            pass
        try:
            Color.RED = 2
        except AttributeError:
            pass
        else:
            raise AssertionError("members can be replaced")
        """,
        tmp_path,
        home="""
        assert back[0] is Color and back[1] is Color.RED
        """,
    )


def test_members_made_by_auto_and_a_generator_of_values(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class Plain(enum.Enum):
            A = enum.auto()
            B = enum.auto()
        class Named(enum.Enum):
            def _generate_next_value_(name, start, count, last):
                return name.lower()
            A = enum.auto()
            B = enum.auto()
        class Base(enum.Enum):
            def shout(self):
                return self.name + "!"
        class Child(Base):
            X = enum.auto()
        obj = [Plain.B, Named.A, Child.X, Base]
        """,
        """
        import enum
        b, a, x, Base = obj
        assert b.value == 2 and a.value == "a" and x.shout() == "X!" and type(x).__bases__ == (Base,)
        class More(Base):
            Y = 5
        assert More.Y.shout() == "Y!"
        """,
        tmp_path,
    )


def test_enumerations_of_numbers_and_texts(tmp_path: Path) -> None:
    travel(
        """
        import enum, datetime, decimal
        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 10
        class Word(str, enum.Enum):
            A = "a"
        class Real(float, enum.Enum):
            HALF = 0.5
        class Day(datetime.date, enum.Enum):
            FIRST = 2020, 1, 1
        class Money(decimal.Decimal, enum.Enum):
            CENT = "0.01"
        class Pair(tuple, enum.Enum):
            P = (1, 2)
        obj = [Level.HIGH, Word.A, Real.HALF, Day.FIRST, Money.CENT, Pair.P]
        """,
        """
        import datetime, decimal
        high, a, half, day, cent, pair = obj
        assert high == 10 and high + 1 == 11 and high > type(high).LOW and isinstance(high, int)
        assert type(high)(1).name == "LOW"
        assert a == "a" and a.upper() == "A" and half * 2 == 1.0 and day.year == 2020 and type(day)(day.value) is day
        assert day == datetime.date(2020, 1, 1) and cent + 1 == decimal.Decimal("1.01") and pair == (1, 2)
        assert pair[1] == 2
        assert f"{high}" == "10" or f"{high}" == "Level.HIGH"
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="StrEnum came with Python 3.11")
def test_newer_kinds(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class Word(enum.StrEnum):
            A = enum.auto()
        class Kept(enum.Flag, boundary=enum.KEEP):
            X = 1
        class Strict(enum.Flag, boundary=enum.STRICT):
            X = 1
            Y = 2
        class Mixed(enum.Enum):
            @enum.member
            def call(): return 5
            @enum.nonmember
            class Inner: pass
            @enum.property
            def name(self): return "renamed " + self._name_
        obj = [Word.A, Kept.X, Strict.X, Mixed.call, Kept(9)]
        """,
        """
        a, kept, strict, call, nine = obj
        assert a == "a" and f"{a}" == "a" and nine.value == 9 and type(kept)(9) is nine
        try:
            type(strict)(8)
        except ValueError:
            pass
        else:
            raise AssertionError("the boundary was lost")
        assert call.value() == 5 and type(call).Inner.__name__ == "Inner" and call.name == "renamed call"
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.version_info < (3, 13), reason="value aliases came with Python 3.13")
def test_further_values_of_a_member_of_new_pythons(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class Known(enum.Enum):
            ONE = 1, "one"
            def __new__(cls, value, *others):
                made = object.__new__(cls)
                made._value_ = value
                for other in others:
                    made._add_value_alias_(other)
                return made
        obj = Known
        """,
        """
        assert obj("one") is obj.ONE is obj(1)
        """,
        tmp_path,
    )


def test_further_values_of_a_member(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class Known(enum.Enum):
            ONE = 1, "one"
            TWO = 2, "two"
            def __new__(cls, value, *others):
                made = object.__new__(cls)
                made._value_ = value
                for other in others:
                    cls._value2member_map_[other] = made
                return made
        obj = Known
        """,
        """
        assert obj("one") is obj.ONE is obj(1) and obj("two") is obj.TWO and len(obj) == 2
        """,
        tmp_path,
    )


def test_flags_and_their_combinations(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class Perm(enum.Flag):
            NONE = 0
            R = enum.auto()
            W = enum.auto()
            X = enum.auto()
            RW = R | W
            def names(self):
                return [m.name for m in type(self) if m in self and m.value]
        class Mode(enum.IntFlag):
            A = 1
            B = 2
        combined = Perm.R | Perm.X
        obj = [Perm, Perm.R, combined, Mode.A | Mode.B, Mode(8), Perm.RW, ~Perm.R]
        """,
        """
        Perm, r, combined, mode, eight, rw, inverted = obj
        assert combined is Perm.R | Perm.X and combined.value == 5 and r in combined and Perm.W not in combined
        assert rw is Perm.R | Perm.W and rw.name == "RW" and (rw & r) is r and bool(Perm.NONE) is False
        assert inverted == ~r and (inverted | r) == Perm.R | Perm.W | Perm.X
        assert mode == 3 and eight == 8 and isinstance(eight, type(mode)) and (mode | 4) == 7
        assert "R" in combined.names()
        """,
        tmp_path,
    )


def test_members_with_constructors_of_their_own(tmp_path: Path) -> None:
    travel(
        """
        import enum
        calls = []
        class Planet(enum.Enum):
            EARTH = (5.976e24, 6.37814e6)
            MARS = (6.421e23, 3.3972e6)
            def __init__(self, mass, radius):
                self.mass, self.radius = mass, radius
                calls.append(self.name if hasattr(self, "_name_") else "?")
            @property
            def gravity(self):
                return self.mass / (self.radius * self.radius)
        class Coordinate(bytes, enum.Enum):
            def __new__(cls, value, label):
                made = bytes.__new__(cls, [value])
                made._value_, made.label = value, label
                return made
            PX = (0, "P.X")
            PY = (1, "P.Y")
        class Checked(int, enum.Enum):
            def __new__(cls, text):
                made = int.__new__(cls, len(text))
                made._value_ = text
                return made
            THREE = "abc"
        class OddFlag(enum.Flag):
            def __new__(cls, value, note=""):
                made = object.__new__(cls)
                made._value_, made.note = value, note
                return made
            A = 1, "first"
            B = 2, "second"
        obj = [Planet.EARTH, Coordinate.PY, Checked.THREE, OddFlag.A, calls]
        """,
        """
        earth, py, three, odd, calls = obj
        Planet = type(earth)
        assert earth.mass == 5.976e24 and Planet((5.976e24, 6.37814e6)) is earth and earth.gravity > Planet.MARS.gravity
        assert len(calls) == 2, "the constructor ran again"
        assert py == b"\\x01" and py.value == 1 and py.label == "P.Y" and type(py)(0).label == "P.X"
        assert three == 3 and three.value == "abc" and type(three)("abc") is three
        assert odd.note == "first" and type(odd)(3).value == 3 and (odd | type(odd).B).value == 3
        """,
        tmp_path,
    )


def test_enumerations_that_mix_in_a_dataclass_or_another_class(tmp_path: Path) -> None:
    travel(
        """
        import dataclasses, enum
        @dataclasses.dataclass
        class Creature:
            size: str
            legs: int
        class Beast(Creature, enum.Enum):
            BEETLE = "small", 6
            DOG = "medium", 4
        class Talks:
            def talk(self):
                return f"I am {self.name}"
        class Person(Talks, enum.Enum):
            ANN = 1
        obj = [Beast.DOG, Person.ANN]
        """,
        """
        dog, ann = obj
        assert dog.legs == 4 and dog.size == "medium" and type(dog).BEETLE.legs == 6 and ann.talk() == "I am ANN"
        assert type(dog)["DOG"] is dog and type(dog)(dog.value) is dog
        """,
        tmp_path,
    )


def test_an_enumeration_below_a_hook_and_with_an_abstract_metaclass(tmp_path: Path) -> None:
    travel(
        """
        import abc, enum
        class Hook:
            calls = 0
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                Hook.calls += 1
        class Hooked(Hook, enum.Enum):
            A = 1
        class Meta(enum.EnumMeta, abc.ABCMeta):
            def __new__(metacls, name, bases, namespace, note=None, **options):
                cls = super().__new__(metacls, name, bases, namespace, **options)
                cls.note = note
                return cls
            def __contains__(cls, member):
                return member in cls._value2member_map_
        class Noted(enum.Enum, metaclass=Meta):
            pass
        class Held(Noted, note="held"):
            A = 1
        obj = [Hooked.A, Held.A, Hook]
        """,
        """
        a, held, Hook = obj
        assert Hook.calls == 1 and type(a)(1) is a and type(a).__bases__[0] is Hook
        assert type(held).note == "held" and 1 in type(held) and 2 not in type(held)
        assert type(type(held)).__name__ == "Meta"
        """,
        tmp_path,
    )


def test_members_that_lead_back_to_their_enumeration(tmp_path: Path) -> None:
    travel(
        """
        import enum
        class State(enum.Enum):
            ON = "on"
            OFF = "off"
            def other(self):
                return State.OFF if self is State.ON else State.ON
        State.default = State.ON
        State.table = {State.ON: State.OFF}
        class Handlers(enum.Enum):
            RUN = (lambda: Handlers.STOP,)
            STOP = (print,)
        obj = [State.OFF, Handlers.RUN]
        """,
        """
        off, run = obj
        State = type(off)
        assert off.other() is State.ON is State.default and State.table[State.ON] is off
        assert run.value[0]() is type(run).STOP
        """,
        tmp_path,
    )


def test_the_functional_form(tmp_path: Path) -> None:
    travel(
        """
        import enum
        Animal = enum.Enum("Animal", "CAT DOG")
        Local = enum.IntFlag("Local", {"A": 1, "B": 2}, qualname="somewhere.Local")
        obj = [Animal.DOG, Local.A | Local.B]
        """,
        """
        dog, both = obj
        assert dog.value == 2 and dog.name == "DOG" and both == 3 and type(both).__qualname__ == "somewhere.Local"
        """,
        tmp_path,
    )


def test_deepcopy_and_copy_give_the_member_itself() -> None:
    import enum

    import safepickle

    class Local(enum.Enum):
        A = [1]

    assert safepickle.deepcopy({"m": Local.A})["m"] is Local.A and safepickle.copy(Local.A) is Local.A
