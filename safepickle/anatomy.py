"""What is in a pickle, without running it?

The opcodes are read one by one and their effect is followed on a stack of descriptions instead of objects: nothing is
imported
or called. Large arguments are skipped in the file, so a file of many gigabytes needs little memory. A malformed file
is a finding, not a crash: whatever was understood until then is reported.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

__all__ = ["Anatomy", "Document", "Malformed", "Node", "read_file", "read_pickle"]

#: How much of a long text or byte string is kept: source code in full, data as a sample.
KEEP_TEXT: Final = 1 << 20
KEEP_BYTES: Final = 256
#: How many children of a container are kept; all are counted.
KEEP_CHILDREN: Final = 4096
#: How many descriptions are kept in the memo and on the stack before the reading is given up.
MAX_NODES: Final = 20_000_000
#: Opcodes that take a length and then so many bytes: format of the length, whether they are text.
_LONG_ARGUMENTS: Final = {
    "SHORT_BINBYTES": ("<B", False), "BINBYTES": ("<I", False), "BINBYTES8": ("<Q", False), "BYTEARRAY8": ("<Q", False),
    "SHORT_BINSTRING": ("<B", False), "BINSTRING": ("<i", False), "LONG1": ("<B", False), "LONG4": ("<i", False),
    "SHORT_BINUNICODE": ("<B", True), "BINUNICODE": ("<I", True), "BINUNICODE8": ("<Q", True),
}  # fmt: skip
#: The longest argument that ends with a line break; a longer one is no pickle.
_MAX_LINE: Final = 1 << 20

_MAGIC_OF_LEGACY_TORCH: Final = 0x1950A86A20F9469CFC6C


class Malformed(ValueError):
    """The file is not a well-formed pickle; the message says where it stops making sense."""


class Node:
    """The description of an object in a pickle.

    Attributes:
        kind: ``global``, ``call``, ``tuple``, ``list``, ``dict``, ``set``, ``bytes``, ``text``, ``number``,
            ``persistent``, ``other``.
        value: a global's ``(module, name)``; a call's function (a node); a text; a number; the persistent id (a node).
        children: items, arguments, or keys and values in turn; at most :data:`KEEP_CHILDREN`.
        count: how many children there were.
        start, end: the range in the file that describes it, without what it shares.
        sizes: for containers and states: label -> bytes.
        state: the state that ``BUILD`` or a state setter gave it.
    """

    __slots__ = ("children", "count", "end", "kind", "sizes", "start", "state", "value")

    def __init__(
        self, kind: str, value: Any = None, children: list[Any] | None = None, start: int = 0, end: int = 0
    ) -> None:
        self.kind = kind
        self.value = value
        self.children: list[Node] = children if children is not None else []
        self.count = len(self.children)
        self.start = start
        self.end = end
        self.sizes: dict[str, int] | None = None
        self.state: Node | None = None

    def add(self, child: Node) -> None:
        """Count a child, and keep it if there is room."""
        self.count += 1
        if len(self.children) < KEEP_CHILDREN:
            self.children.append(child)

    @property
    def name(self) -> str | None:
        """``module.name`` of a global, of what a call calls."""
        if self.kind == "global":
            return f"{self.value[0]}.{self.value[1]}"
        return self.value.name if self.kind == "call" and isinstance(self.value, Node) else None

    def plain(self, depth: int = 3) -> Any:
        """The value as Python data where it is that simple; descriptions in angle brackets elsewhere."""
        if self.kind in ("text", "number"):
            return self.value
        if depth and self.kind in ("tuple", "list"):
            return tuple(child.plain(depth - 1) for child in self.children)
        return f"<{self.name or self.kind}>"


@dataclass
class Anatomy:
    """What one pickle holds.

    Attributes:
        protocol: as its first opcode says; 0 without one.
        start, end: where it is in its file.
        root: the object; ``None`` if the pickle breaks off.
        globals: ``module.name`` -> how often it is used.
        calls: functions that loading would call, with how often.
        opcodes: how many.
        problem: what is wrong with it, if something is.
    """

    protocol: int = 0
    start: int = 0
    end: int = 0
    root: Node | None = None
    globals: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    nodes: list[Node] = field(default_factory=list, repr=False)
    opcodes: int = 0
    problem: str | None = None


@dataclass
class Document:
    """What one file holds.

    Attributes:
        path: the file.
        format: ``pickle``, ``torch (zip)``, ``torch (legacy)``.
        size: bytes.
        pickles: the pickles in it, in order.
        records: for zip files: record -> bytes, without the pickles.
        problem: what is wrong with the file, if something is.
    """

    path: str
    format: str
    size: int
    pickles: list[Anatomy] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    problem: str | None = None


# -- reading opcodes ---------------------------------------------------------------------------------------------------


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise Malformed("the file ends in the middle of an opcode")
    return data


def _line(file: BinaryIO) -> bytes:
    data = file.readline(_MAX_LINE)
    if not data.endswith(b"\n"):
        raise Malformed("the file ends in the middle of a line" if len(data) < _MAX_LINE else "a line without end")
    return data[:-1]


def _long_argument(file: BinaryIO, form: str, is_text: bool, size: int) -> Any:
    (length,) = struct.unpack(form, _exactly(file, struct.calcsize(form)))
    position = file.tell()
    if length < 0 or position + length > size:
        raise Malformed(f"an argument of {length} bytes where {max(size - position, 0)} are left")
    keep = KEEP_TEXT if is_text else KEEP_BYTES
    data = file.read(min(length, keep))
    file.seek(position + length)
    if is_text:
        return data.decode("utf-8", "replace"), length
    return data, length


def read_pickle(file: BinaryIO, size: int, progress: Callable[[int], None] | None = None) -> Anatomy:
    """Follow one pickle in a file from where the file stands.

    Args:
        file: a seekable binary file.
        size: where the file ends.
        progress: called now and then with the position.

    Returns:
        What was found; ``problem`` is set where the pickle is malformed.
    """
    return follow(_Machine(file, size), progress)


def follow(machine: _Machine, progress: Callable[[int], None] | None) -> Anatomy:
    """Run the stack machine to the end of its pickle, or to where that makes no sense."""
    found, file = machine.anatomy, machine.file
    found.start = file.tell()
    try:
        machine.run(progress)
    except Malformed as error:
        found.problem = f"at byte {machine.position}: {error}"
    except (ValueError, IndexError, KeyError, OverflowError, struct.error, MemoryError, UnicodeError) as error:
        found.problem = f"at byte {machine.position}: {type(error).__name__}: {error}"
    found.end = file.tell()
    return found


class _Machine:
    """The unpickler's stack machine, over descriptions."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size
        self.position = file.tell()
        self.anatomy = Anatomy()
        self.stack: list[Node] = []
        self.marks: list[tuple[list[Node], int]] = []
        self.memo: dict[int, Node] = {}
        self.done = False
        self.kept = 0
        self.buffers: list[Node] = []  # those that are out of band
        self.depth = 0  # in how many sealed objects this pickle is
        self.sealed: dict[tuple[str, int], _Machine | str] = {}  # found inside of sealed bytes, by where they begin

    def run(self, progress: Callable[[int], None] | None) -> None:
        opcodes: dict[str, Any] = vars(pickletools)["code2op"]
        while not self.done:
            self.position = self.file.tell()
            code = self.file.read(1)
            if not code:
                raise Malformed("the file ends before the pickle does" if self.anatomy.opcodes else "no pickle here")
            opcode = opcodes.get(code.decode("latin-1"))
            if opcode is None:
                raise Malformed(f"no opcode {code!r}")
            self.anatomy.opcodes += 1
            if progress is not None and self.anatomy.opcodes % 65536 == 0:
                progress(self.position)
            argument = self.argument(opcode)
            self.step(opcode.name, argument)

    def argument(self, opcode: Any) -> Any:
        if opcode.name in _LONG_ARGUMENTS:
            return _long_argument(self.file, *_LONG_ARGUMENTS[opcode.name], self.size)
        if opcode.arg is None:
            return None
        if opcode.arg.n == pickletools.UP_TO_NEWLINE:
            lines = [_line(self.file) for _ in range(2 if opcode.name in ("GLOBAL", "INST") else 1)]
            encoding = "raw-unicode-escape" if opcode.name == "UNICODE" else "utf-8"
            return [line.decode(encoding, "replace") for line in lines]
        data = _exactly(self.file, opcode.arg.n)
        return opcode.arg.reader(io.BytesIO(data))

    # -- the stack -----------------------------------------------------------------------------------------------------

    def push(self, node: Node) -> None:
        self.kept += 1
        if self.kept > MAX_NODES:
            raise Malformed(f"more than {MAX_NODES} objects: gave up")
        node.end = self.file.tell()
        self.stack.append(node)

    def pop(self) -> Node:
        if not self.stack:
            raise Malformed("the stack is empty")
        return self.stack.pop()

    def top(self) -> Node:
        if not self.stack:
            raise Malformed("the stack is empty")
        return self.stack[-1]

    def pop_mark(self) -> tuple[list[Node], int]:
        if not self.marks:
            raise Malformed("no mark on the stack")
        items = self.stack
        self.stack, start = self.marks.pop()
        return items, start

    def step(self, name: str, argument: Any) -> None:
        handler = getattr(self, f"on_{name.lower()}", None)
        if handler is not None:
            handler(argument)
            return
        kind = _SIMPLE.get(name)
        if kind is None:
            raise Malformed(f"opcode {name} is not understood")
        self.push(_simple(kind, name, argument, self.position))

    # -- opcodes that make or change something -------------------------------------------------------------------------

    def on_proto(self, argument: int) -> None:
        if argument > 5:
            raise Malformed(f"protocol {argument} is not known")
        self.anatomy.protocol = argument

    def on_frame(self, argument: int) -> None:
        if self.file.tell() + argument > self.size:
            raise Malformed(f"a frame of {argument} bytes where {self.size - self.file.tell()} are left")

    def on_stop(self, argument: None) -> None:
        self.anatomy.root = self.pop()
        self.done = True

    def on_mark(self, argument: None) -> None:
        self.marks.append((self.stack, self.position))
        self.stack = []

    def on_pop(self, argument: None) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def on_pop_mark(self, argument: None) -> None:
        self.pop_mark()

    def on_dup(self, argument: None) -> None:
        self.push(self.top())

    def on_memoize(self, argument: None) -> None:
        self.memo[len(self.memo)] = self.top()

    def _put(self, argument: Any) -> None:
        self.memo[int(argument[0]) if isinstance(argument, list) else argument] = self.top()

    on_put = on_binput = on_long_binput = _put

    def _get(self, argument: Any) -> None:
        key = int(argument[0]) if isinstance(argument, list) else argument
        if key not in self.memo:
            raise Malformed(f"nothing in the memo under {key}")
        node = self.memo[key]
        end = node.end
        self.push(node)
        node.end = end

    on_get = on_binget = on_long_binget = _get

    def _global(self, module: str, name: str, start: int) -> None:
        node = Node("global", (module, name), start=start)
        self.anatomy.globals[f"{module}.{name}"] += 1
        self.anatomy.nodes.append(node)
        self.push(node)

    def on_global(self, argument: list[str]) -> None:
        self._global(argument[0], argument[1], self.position)

    def on_stack_global(self, argument: None) -> None:
        name, module = self.pop(), self.pop()
        if name.kind != "text" or module.kind != "text":
            raise Malformed("a global whose name is not a text")
        self._global(module.value, name.value, module.start)

    def _extension(self, argument: int) -> None:
        self._global("copyreg._extension_registry", str(argument), self.position)

    on_ext1 = on_ext2 = on_ext4 = _extension

    def _call(self, function: Node, arguments: list[Node], start: int) -> None:
        node = Node("call", function, arguments, start)
        self.anatomy.calls[function.name or function.kind] += 1
        self.anatomy.nodes.append(node)
        self.push(node)
        place = _SEALS.get(function.name or "")
        if place is not None:
            self._look_inside(node, *(*arguments[place : place + 2], None, None)[:2])

    def _look_inside(self, node: Node, data: Node | None, buffers: Node | None) -> None:
        """What is in the pickle that a sealed object carries is in this one, too."""
        place = ("", 0)
        if data is not None:
            place = data.kind, (data.children[0] if data.kind == "call" and data.children else data).start
        inner = self.sealed.get(place)
        again = inner is not None  # the same bytes: counted, but looked into once, or a small file could take for ever
        if inner is None:
            after = self.file.tell()
            try:
                inner = self.sealed[place] = _nested(self.file, data, self.depth + 1)
            finally:
                self.file.seek(after)
        if isinstance(inner, str):
            self.anatomy.problem = self.anatomy.problem or f"at byte {node.start}: {inner}"
            return
        found = inner.anatomy
        if found.problem is not None:
            self.anatomy.problem = self.anatomy.problem or f"in the sealed object at byte {node.start}: {found.problem}"
        self.anatomy.globals.update(found.globals)
        self.anatomy.calls.update(found.calls)
        self.anatomy.opcodes += found.opcodes
        if again:
            return
        for outside, inside in zip(buffers.children if buffers is not None else (), inner.buffers, strict=False):
            inside.start, inside.end = outside.start, outside.end
        self.anatomy.nodes.extend(found.nodes)
        node.state = found.root

    def on_reduce(self, argument: None) -> None:
        arguments, function = self.pop(), self.pop()
        if function.name == "safepickle.restore.submodule" or arguments.kind == "tuple":
            self._call(function, arguments.children, function.start)
        else:
            self._call(function, [arguments], function.start)

    def on_newobj(self, argument: None) -> None:
        arguments, cls = self.pop(), self.pop()
        self._call(cls, arguments.children, cls.start)

    def on_newobj_ex(self, argument: None) -> None:
        keywords, arguments, cls = self.pop(), self.pop(), self.pop()
        self._call(cls, [*arguments.children, keywords], cls.start)

    def on_inst(self, argument: list[str]) -> None:
        items, start = self.pop_mark()
        self._global(argument[0], argument[1], self.position)
        self._call(self.pop(), items[:KEEP_CHILDREN], start)

    def on_obj(self, argument: None) -> None:
        items, start = self.pop_mark()
        if not items:
            raise Malformed("an object without a class")
        self._call(items[0], items[1:KEEP_CHILDREN], start)

    def on_build(self, argument: None) -> None:
        state, node = self.pop(), self.top()
        node.state = state
        node.end = self.file.tell()

    def _persistent(self, pid: Node, start: int) -> None:
        node = Node("persistent", pid, start=start)
        self.anatomy.nodes.append(node)
        self.push(node)

    def on_binpersid(self, argument: None) -> None:
        pid = self.pop()
        self._persistent(pid, pid.start)

    def on_persid(self, argument: list[str]) -> None:
        self._persistent(Node("text", argument[0], start=self.position), self.position)

    # -- containers ----------------------------------------------------------------------------------------------------

    def _tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)][::-1]
        self.push(Node("tuple", None, items, items[0].start if items else self.position))

    def on_tuple1(self, argument: None) -> None:
        self._tuple_of(1)

    def on_tuple2(self, argument: None) -> None:
        setter_call = len(self.stack) >= 3 and self.stack[-3].name in _STATE_SETTERS
        self._tuple_of(2)
        if setter_call:
            target, state = self.top().children
            target.state = state

    def on_tuple3(self, argument: None) -> None:
        self._tuple_of(3)

    def _from_mark(self, kind: str) -> None:
        items, start = self.pop_mark()
        node = Node(kind, None, items[:KEEP_CHILDREN], start)
        node.count = len(items)
        self.push(node)

    def on_tuple(self, argument: None) -> None:
        self._from_mark("tuple")

    def on_list(self, argument: None) -> None:
        self._from_mark("list")

    def on_frozenset(self, argument: None) -> None:
        self._from_mark("set")

    def on_dict(self, argument: None) -> None:
        items, start = self.pop_mark()
        node = Node("dict", None, start=start)
        self.push(node)
        self._set_items(node, items)

    def on_empty_tuple(self, argument: None) -> None:
        self.push(Node("tuple", start=self.position))

    def on_empty_list(self, argument: None) -> None:
        self.push(Node("list", start=self.position))

    def on_empty_dict(self, argument: None) -> None:
        self.push(Node("dict", start=self.position))

    def on_empty_set(self, argument: None) -> None:
        self.push(Node("set", start=self.position))

    def _extend(self, items: list[Node]) -> None:
        node = self.top()
        for item in items:
            self._measure(node, f"[{node.count}]", item)
            node.add(item)
        node.end = self.file.tell()

    def on_append(self, argument: None) -> None:
        self._extend([self.pop()])

    def on_appends(self, argument: None) -> None:
        self._extend(self.pop_mark()[0])

    on_additems = on_appends

    def on_setitem(self, argument: None) -> None:
        value, key = self.pop(), self.pop()
        self._set_items(self.top(), [key, value])

    def on_setitems(self, argument: None) -> None:
        items = self.pop_mark()[0]
        self._set_items(self.top(), items)

    def _set_items(self, node: Node, items: list[Node]) -> None:
        if len(items) % 2:
            raise Malformed("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._measure(node, f"[{key.plain()!r}]", value)
            node.add(key)
            node.add(value)
        node.end = self.file.tell()

    def _measure(self, node: Node, label: str, part: Node) -> None:
        if node.sizes is None:
            node.sizes = {}
        if len(node.sizes) < KEEP_CHILDREN:
            node.sizes[label[:200]] = max(part.end - part.start, 0)

    def on_next_buffer(self, argument: None) -> None:
        self.push(Node("bytes", "out of band", start=self.position))
        self.buffers.append(self.top())

    def on_readonly_buffer(self, argument: None) -> None:
        self.top()


#: Functions whose calls carry a pickle, and which argument it is; the next one has its buffers.
_SEALS: Final = {"safepickle.sealing.unseal": 0, "safepickle.sealing.sealed": 1}
#: How many sealed objects in one another are looked into.
_MOST_SEALS: Final = 20


def _nested(file: BinaryIO, data: Node | None, depth: int) -> _Machine | str:
    """What followed the pickle that an argument is; a text, why not."""
    if data is None or depth > _MOST_SEALS:
        return "a sealed object without a pickle" if data is None else "too many sealed objects in one another"
    if data.kind == "call" and data.name == "_codecs.encode" and data.children:  # bytes, below protocol 3
        text = data.children[0].value
        encoded = text.encode("latin-1", "replace") if isinstance(text, str) else b""
        if not encoded or len(text) >= KEEP_TEXT:
            return "a sealed object that is too large to be looked into at this protocol"
        stream: BinaryIO = io.BytesIO(encoded)
    elif data.kind == "bytes" and isinstance(data.value, tuple):
        file.seek(data.end - data.value[1])
        stream = io.BytesIO(file.read(data.value[1]))
    else:
        return "a sealed object whose pickle is not here"
    machine = _Machine(stream, len(stream.getbuffer()))  # type: ignore[attr-defined]
    machine.depth = depth
    follow(machine, None)
    return machine


#: Functions that give an object its state: (function, object, state).
_STATE_SETTERS: Final = {
    f"safepickle.restore.{name}" for name in ("fill_function", "fill_class", "fill_cell", "fill_module")
}

_SIMPLE: Final = {
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4",
                     "FLOAT", "BINFLOAT"), "number"),
    **dict.fromkeys(("STRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), "text"),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), "bytes"),
}  # fmt: skip

_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _simple(kind: str, name: str, argument: Any, start: int) -> Node:
    if name in _CONSTANTS:
        value: Any = _CONSTANTS[name]
    elif name in ("LONG1", "LONG4"):
        value = int.from_bytes(argument[0], "little", signed=True) if argument[1] <= KEEP_BYTES else "<a long number>"
    elif kind == "bytes":
        value = argument
    elif isinstance(argument, list):
        value = _from_line(kind, name, argument[0])
    elif isinstance(argument, tuple):
        value = argument[0]
    else:
        value = argument
    return Node(kind, value, start=start)


def _from_line(kind: str, name: str, line: str) -> Any:
    if kind == "text":
        return line.strip("'\"") if name == "STRING" else line
    if name == "INT" and line in ("00", "01"):
        return line == "01"
    try:
        return float(line) if name == "FLOAT" else int(line.rstrip("L"))
    except ValueError:
        raise Malformed(f"{line[:40]!r} is not a number") from None


# -- files -------------------------------------------------------------------------------------------------------------


def read_file(path: str | Path, progress: Callable[[int], None] | None = None) -> Document:
    """What a file holds: a pickle, several in a row, or a file of ``torch.save`` in either format. Runs nothing.

    Raises:
        OSError: the file cannot be read.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            return _read_zip(path, size, progress)
        file.seek(0)
        return _read_pickles(path, file, size, progress)


def _read_pickles(path: Path, file: BinaryIO, size: int, progress: Callable[[int], None] | None) -> Document:
    document = Document(str(path), "pickle", size)
    while file.tell() < size:
        found = read_pickle(file, size, progress)
        document.pickles.append(found)
        first = document.pickles[0].root
        if first is not None and first.kind == "number" and first.value == _MAGIC_OF_LEGACY_TORCH:
            document.format = "torch (legacy)"
            if (
                len(document.pickles) == 5
            ):  # magic, version, system, object, storage keys; then raw bytes of the storages
                document.records["storages"] = size - file.tell()
                return document
        if found.problem is not None:
            document.problem = found.problem
            return document
    if not document.pickles:
        document.problem = "the file is empty"
    return document


def _read_zip(path: Path, size: int, progress: Callable[[int], None] | None) -> Document:
    document = Document(str(path), "torch (zip)", size)
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".pkl"):
                    document.records[info.filename] = info.file_size
                    continue
                if info.file_size > 1 << 31:
                    document.problem = f"{info.filename} claims {info.file_size} bytes: not read"
                    continue
                with archive.open(info) as member:
                    document.pickles.append(read_pickle(_seekable(member, info.file_size), info.file_size, progress))
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        EOFError,
        ValueError,
        RuntimeError,
        OSError,
        zlib.error,
    ) as error:
        document.problem = f"not a readable zip file: {error}"
    if not document.pickles and document.problem is None:
        document.problem = "a zip file without a pickle"
    for found in document.pickles:
        document.problem = document.problem or found.problem
    return document


def _seekable(member: Any, size: int) -> BinaryIO:
    data = member.read(min(size, 1 << 31) + 1)
    return io.BytesIO(data[:size])
