"""What does a pickle do, operation by operation, without running it?

The operations are read by :mod:`pickletools` and followed on a stack of stand-ins: strings, numbers and tuples of them
are known, and which names are imported and called with what; everything else is unknown. Nothing is imported and
nothing called.
"""

from __future__ import annotations

import copyreg
import os
import pickletools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

__all__ = ["Call", "Global", "Made", "Malformed", "Operation", "operations"]


class Global(NamedTuple):
    """A name that is imported."""

    module: str
    name: str


class Made(NamedTuple):
    """What a call returns."""

    callee: Any


class Call(NamedTuple):
    """A callable with its arguments, as far as both are known.

    For ``BUILD`` the callee is the object, and its state stands for the arguments.
    """

    callee: Any
    arguments: Any


class Operation(NamedTuple):
    """One operation of a pickle.

    Attributes:
        offset: its first byte, counted from the start of the pickle.
        opcode: its name, as in :mod:`pickletools`.
        effect: a :class:`Global` or a :class:`Call`, if it is one.
        protocol: the protocol that the pickle has declared so far.
    """

    offset: int
    opcode: str
    effect: Any
    protocol: int


class Malformed(Exception):
    """The pickle cannot be read on from here.

    Attributes:
        offset: where the operation begins that cannot be carried out.
        opcode: its name; ``None`` where there is none.
    """

    def __init__(self, problem: str, offset: int, opcode: str | None) -> None:
        super().__init__(problem)
        self.offset = offset
        self.opcode = opcode


_BY_CODE: Final[dict[str, Any]] = pickletools.code2op  # type: ignore[attr-defined]
UNKNOWN: Final = object()
_MARK: Final = object()


class OutOfTime(Exception):
    """The pickle is longer than anybody wants to wait for."""


def operations(file: Any, seconds: float = 5.0) -> Iterator[Operation]:
    """The operations of one pickle, from the current position of a file to its end.

    Raises:
        Malformed: as soon as an operation is unknown, cut off or does not find what it needs on the stack.
        OutOfTime: it takes longer than ``seconds``.
    """
    machine = _Machine()
    deadline = time.monotonic() + seconds
    start = file.tell()
    end = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    count = 0
    while True:
        offset = file.tell() - start
        opcode, argument = _read(file, offset)
        if opcode.name == "FRAME" and offset + _FRAME_HEAD + argument > end:
            raise Malformed(f"the frame is to have {argument} bytes, which are not there", offset, opcode.name)
        count += 1
        if count % 512 == 0 and time.monotonic() > deadline:
            raise OutOfTime
        try:
            effect = machine.step(opcode, argument)
        except _Stuck as stuck:
            raise Malformed(str(stuck), offset, opcode.name) from None
        yield Operation(offset, opcode.name, effect, machine.protocol)
        if opcode.name == "STOP":
            return


#: The bytes of a FRAME operation itself.
_FRAME_HEAD: Final = 9


def _read(file: Any, offset: int) -> tuple[Any, Any]:
    """One operation and its argument."""
    code = file.read(1)
    if not code:
        raise Malformed("the pickle ends without STOP", offset, None)
    opcode = _BY_CODE.get(code.decode("latin-1"))
    if opcode is None:
        raise Malformed(f"there is no opcode {code!r}", offset, None)
    if opcode.arg is None:
        return opcode, None
    try:
        return opcode, opcode.arg.reader(file)
    except Exception as error:
        raise Malformed(str(error), offset, opcode.name) from None


class _Stuck(Exception):
    """An operation does not find what it needs."""


class _Machine:
    """The stack and the memo of an unpickler that knows only texts, numbers, tuples and names."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.protocol = 0

    def step(self, opcode: Any, argument: Any) -> Any:
        """Carry out one operation; return its effect."""
        handler = _HANDLERS.get(opcode.name)
        if handler is not None:
            return handler(self, argument)
        return self._by_description(opcode, argument)

    def _by_description(self, opcode: Any, argument: Any) -> None:
        """Pop and push as many values as :mod:`pickletools` says; keep what the operation itself says."""
        before, after = opcode.stack_before, opcode.stack_after
        if pickletools.markobject in before:
            self.to_mark()
            taken = self.pop(before.index(pickletools.markobject))
        else:
            taken = self.pop(len(before))
        if len(before) > 1 and taken and after == before[:1]:
            self.stack.append(taken[0])  # a container that something was put into
            return
        known = argument if type(argument) in (str, int, float, bytes) and len(after) == 1 else UNKNOWN
        self.stack.extend([known] * len(after))

    def pop(self, count: int) -> list[Any]:
        """The last values of the stack, in order."""
        if count == 0:
            return []
        taken = self.stack[-count:]
        if len(taken) < count or any(value is _MARK for value in taken):
            raise _Stuck("the stack has too few values for it")
        del self.stack[-count:]
        return taken

    def to_mark(self) -> list[Any]:
        """The values above the last mark."""
        taken: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is _MARK:
                return taken[::-1]
            taken.append(value)
        raise _Stuck("there is no mark on the stack")

    # -- operations of their own -------------------------------------------------------------------------------------

    def proto(self, argument: Any) -> None:
        self.protocol = argument

    def mark(self, argument: Any) -> None:
        self.stack.append(_MARK)

    def drop(self, argument: Any) -> None:
        if not self.stack:
            raise _Stuck("the stack has too few values for it")
        self.stack.pop()

    def duplicate(self, argument: Any) -> None:
        self.stack += self.pop(1) * 2

    def put(self, argument: Any) -> None:
        if not self.stack:
            raise _Stuck("the stack has too few values for it")
        self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]

    def get(self, argument: Any) -> None:
        if argument not in self.memo:
            raise _Stuck(f"memo value {argument} was never stored")
        self.stack.append(self.memo[argument])

    def empty_tuple(self, argument: Any) -> None:
        self.stack.append(())

    def tuple_of(self, argument: Any) -> None:
        self.stack.append(tuple(self.to_mark()))

    def global_(self, argument: Any) -> Any:
        module, _, name = argument.partition(" ")
        return self._import(module, name)

    def stack_global(self, argument: Any) -> Any:
        module, name = self.pop(2)
        if not all(isinstance(part, str) or part is UNKNOWN for part in (module, name)):
            raise _Stuck("a name must be two strings")
        return self._import(module, name)

    def extension(self, argument: Any) -> Any:
        registered: Any = copyreg._inverted_registry.get(argument)  # type: ignore[attr-defined]
        return self._import(*(registered or (UNKNOWN, UNKNOWN)))

    def _import(self, module: Any, name: Any) -> Any:
        known = Global(module, name) if isinstance(module, str) and isinstance(name, str) else None
        self.stack.append(UNKNOWN if known is None else known)
        return known

    def reduce(self, argument: Any) -> Call:
        callee, arguments = self.pop(2)
        return self._call(callee, arguments)

    def set_items(self, argument: Any) -> None:
        if len(self.to_mark()) % 2:
            raise _Stuck("there is a key without a value")
        self.stack += self.pop(1)

    def newobj(self, argument: Any) -> Call:
        callee, arguments = self.pop(2)
        if type(callee) in (str, int, float, bytes, tuple):
            raise _Stuck("what it is to make an object of is no class")
        return self._call(callee, arguments)

    def newobj_ex(self, argument: Any) -> Call:
        callee, arguments, _ = self.pop(3)
        return self._call(callee, arguments)

    def obj(self, argument: Any) -> Call:
        parts = self.to_mark()
        if not parts:
            raise _Stuck("the stack has too few values for it")
        return self._call(parts[0], tuple(parts[1:]))

    def inst(self, argument: Any) -> Call:
        arguments = tuple(self.to_mark())
        module, _, name = argument.partition(" ")
        return self._call(Global(module, name), arguments)

    def _call(self, callee: Any, arguments: Any) -> Call:
        self.stack.append(Made(callee))
        return Call(callee, arguments)

    def build(self, argument: Any) -> Call:
        target, state = self.pop(2)
        self.stack.append(target)
        return Call(target, state)


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def handler(machine: _Machine, argument: Any) -> None:
        machine.stack.append(tuple(machine.pop(count)))

    return handler


_HANDLERS: Final[dict[str, Callable[[_Machine, Any], Any]]] = {
    "PROTO": _Machine.proto,
    "MARK": _Machine.mark,
    "POP": _Machine.drop,
    "DUP": _Machine.duplicate,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "EMPTY_TUPLE": _Machine.empty_tuple,
    "TUPLE": _Machine.tuple_of,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _Machine.extension),
    "SETITEMS": _Machine.set_items,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.newobj,
    "NEWOBJ_EX": _Machine.newobj_ex,
    "OBJ": _Machine.obj,
    "INST": _Machine.inst,
    "BUILD": _Machine.build,
}
