"""``python -m safepickle migrate FILE --map OLD=NEW -o OUT``: names in a pickle, rewritten without running it."""

from __future__ import annotations

import argparse
import io
import json
import pickletools
import shutil
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from ..anatomy import Document, Malformed, read_file

__all__ = ["add_arguments", "migrate_file", "parse_map", "run"]

Names = dict[tuple[str, str], tuple[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", metavar="FILE", help="a pickle, several in a row, or a file of torch.save")
    mapping = "module:name=module:name; or module=module for all names of a module; repeatable"
    parser.add_argument("--map", action="append", required=True, metavar="OLD=NEW", dest="maps", help=mapping)
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="where to write; never the file itself")


def parse_map(texts: list[str]) -> Names:
    """``old.module:name=new.module:name`` -> pairs; an empty name stands for all names of the module.

    Raises:
        ValueError: a text is not of that form.
    """
    names: Names = {}
    for text in texts:
        old, equals, new = text.partition("=")
        old_module, old_colon, old_name = old.partition(":")
        new_module, new_colon, new_name = new.partition(":")
        if not equals or bool(old_colon) != bool(new_colon) or not old_module or not new_module:
            raise ValueError(f"{text!r} is not of the form old.module:name=new.module:name or old.module=new.module")
        names[old_module, old_name] = (new_module, new_name)
    return names


def _renamed(names: Names, module: str, name: str) -> tuple[str, str] | None:
    if (module, name) in names:
        return names[module, name]
    head, dot, rest = name.partition(".")
    if dot and (module, head) in names:  # a class moved, and this is something in it
        new_module, new_head = names[module, head]
        return new_module, f"{new_head}.{rest}"
    if (module, "") in names:
        return names[module, ""][0], name
    return None


# -- one pickle --------------------------------------------------------------------------------------------------------


def migrate_pickle(data: bytes, names: Names) -> tuple[bytes, int, int]:
    """Rewrite the first pickle in ``data``.

    Globals are written anew, as are the texts ``(module, qualified name)`` of our own references. Frames are dropped:
    they are optional.

    Returns:
        The new pickle, how many names were rewritten, and how many bytes of ``data`` the old one took.

    Raises:
        Malformed: the pickle breaks off, or is none.
    """
    out = io.BytesIO()
    stream = io.BytesIO(data)
    changed = 0
    try:
        opcodes = list(pickletools.genops(stream))
    except Exception as error:
        raise Malformed(str(error)) from error
    end = stream.tell()
    texts = _TextsOnStack()
    ends = [position for _, _, position in opcodes[1:]] + [end]
    for (opcode, argument, position), after in zip(opcodes, ends, strict=True):
        raw = data[position:after]
        if opcode.name == "FRAME":
            continue
        if opcode.name in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            new = _renamed(names, module, name)
            if new is not None:
                raw = opcode.code.encode("latin-1") + f"{new[0]}\n{new[1]}\n".encode()
                changed += 1
        elif opcode.name == "STACK_GLOBAL":
            pair = texts.top_two()
            new = None if pair is None else _renamed(names, *pair)
            if new is not None:
                # The two names stay where they are, for the memo may refer to them; new ones go on top of them.
                raw = b"0" + b"0" + _text(new[0]) + _text(new[1]) + raw
                changed += 1
        texts.step(opcode, argument)
        replaced = texts.reference(opcode, names)
        if replaced is not None:
            raw = replaced
            changed += 1
        out.write(raw)
    return out.getvalue(), changed, end


def _text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) < 256:
        return b"\x8c" + bytes([len(encoded)]) + encoded
    return b"X" + struct.pack("<I", len(encoded)) + encoded


class _TextsOnStack:
    """Follows which texts lie on top of the stack: a global takes the last two, a reference of ours three arguments."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._marks: list[int] = []

    def top_two(self) -> tuple[str, str] | None:
        pair = self._stack[-2:]
        return (pair[0], pair[1]) if len(pair) == 2 and all(isinstance(text, str) for text in pair) else None

    def reference(self, opcode: Any, names: Names) -> bytes | None:
        """The opcodes that replace the one that closes the arguments of a reference of ours to a name that moved."""
        if opcode.name not in ("TUPLE2", "TUPLE3") or len(self._stack) < 2:
            return None
        function, arguments = self._stack[-2], self._stack[-1]
        if not (isinstance(function, _Global) and function.module.startswith("safepickle.restore")):
            return None
        if not (
            isinstance(arguments, tuple) and len(arguments) >= 2 and all(isinstance(a, str) for a in arguments[:2])
        ):
            return None
        new = _renamed(names, arguments[0], arguments[1])
        if new is None:
            return None
        self._stack[-1] = (*new, *arguments[2:])
        close: bytes = opcode.code.encode("latin-1")
        if opcode.name == "TUPLE2":
            return b"00" + _text(new[0]) + _text(new[1]) + close
        path = arguments[2]
        if not (isinstance(path, tuple) and all(isinstance(part, str) for part in path)):
            return None
        return b"000" + _text(new[0]) + _text(new[1]) + b"(" + b"".join(map(_text, path)) + b"t" + close

    def step(self, opcode: Any, argument: Any) -> None:
        """What the opcode does to the stack, as far as texts and tuples of texts go."""
        name, stack = opcode.name, self._stack
        if name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1] if stack else None
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = stack[-1] if stack else None
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo.get(int(argument)))
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name == "STACK_GLOBAL":
            pair = self.top_two()
            del stack[-2:]
            stack.append(_Global(*pair) if pair else None)
        elif name == "GLOBAL":
            stack.append(_Global(*str(argument).split(" ", 1)))
        elif name in ("EMPTY_TUPLE",):
            stack.append(())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = tuple(stack[-count:])
            del stack[-count:]
            stack.append(items)
        elif name == "TUPLE":
            start = self._marks.pop() if self._marks else len(stack)
            items = tuple(stack[start:])
            del stack[start:]
            stack.append(items)
        else:
            self._generic(opcode, argument)

    def _generic(self, opcode: Any, argument: Any) -> None:
        stack = self._stack
        before, after = opcode.stack_before, opcode.stack_after
        if pickletools.markobject in before or opcode.name == "POP_MARK":
            start = self._marks.pop() if self._marks else len(stack)
            del stack[start:]
            before = before[: before.index(pickletools.markobject)] if pickletools.markobject in before else []
        if before:
            del stack[-len(before) :]
        for kind in after:
            is_text = kind is pickletools.pyunicode or (opcode.name in ("STRING", "BINSTRING", "SHORT_BINSTRING"))
            stack.append(argument if is_text and isinstance(argument, str) else None)


class _Global:
    def __init__(self, module: str, name: str = "") -> None:
        self.module = module
        self.name = name


# -- files -------------------------------------------------------------------------------------------------------------


def migrate_file(source: Path, names: Names, target: Path) -> int:
    """Rewrite the names in a file.

    Returns:
        How many names were rewritten.

    Raises:
        Malformed: the file is no pickle and no file of ``torch.save``, or is damaged.
        OSError: a file cannot be read or written.
    """
    document = read_file(source)
    if document.problem:
        raise Malformed(document.problem)
    if any(name.startswith("safepickle.sealing.") for found in document.pickles for name in found.globals):
        raise Malformed("it holds a sealed object, whose pickle is not rewritten: load it, and seal the object anew")
    if document.format == "torch (zip)":
        return _migrate_zip(source, names, target)
    return _migrate_stream(source, document, names, target)


def _migrate_stream(source: Path, document: Document, names: Names, target: Path) -> int:
    changed = 0
    with source.open("rb") as old, target.open("wb") as new:
        for found in document.pickles:
            old.seek(found.start)
            data, count, _ = migrate_pickle(old.read(found.end - found.start), names)
            new.write(data)
            changed += count
        old.seek(document.pickles[-1].end)
        shutil.copyfileobj(old, new)  # the storages behind the pickles of a legacy torch file
    return changed


def _migrate_zip(source: Path, names: Names, target: Path) -> int:
    """Torch maps the records into memory, so each must keep its alignment: torch's own writer sees to that."""
    changed = 0
    records: list[tuple[str, bytes]] = []
    with zipfile.ZipFile(source) as old:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(".pkl"):
                data, count, _ = migrate_pickle(data, names)
                changed += count
            records.append((info.filename, data))
    _write_aligned(records, target)
    return changed


#: Where torch aligns the contents of a record.
_ALIGNMENT = 64


def _write_aligned(records: list[tuple[str, bytes]], target: Path) -> None:
    with target.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for name, data in records:
            info = zipfile.ZipInfo(name)
            info.extra = _padding(file, name)
            new.writestr(info, data)


def _padding(file: BinaryIO, name: str) -> bytes:
    """An extra field, as torch writes it, that moves the contents to the next multiple of the alignment."""
    header = 30 + len(name.encode())
    position = file.tell() + header + 4
    length = -position % _ALIGNMENT
    return b"FB" + struct.pack("<H", length) + b"Z" * length


def run(arguments: argparse.Namespace) -> int:
    """Write the new file; status 1 if no name was rewritten, 2 if it could not be done."""
    source, target = Path(arguments.file), Path(arguments.output)
    try:
        names = parse_map(arguments.maps)
        if target.exists() and source.exists() and target.samefile(source):
            raise ValueError("the output must be another file")
        changed = migrate_file(source, names, target)
    except (OSError, ValueError) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({"file": str(source), "output": str(target), "rewritten": changed}))
    else:
        print(f"{target}: {changed} name{'' if changed == 1 else 's'} rewritten")
    return 0 if changed else 1
