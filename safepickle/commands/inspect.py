"""``python -m safepickle inspect FILE...``: what is in a pickle, without running it."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ..anatomy import Anatomy, Document, Node, read_file
from .names import resolves
from .tables import print_table

__all__ = ["add_arguments", "describe", "run"]

_RESTORE: Final = "safepickle.restore."
#: Functions of ours that take (module, qualified name, path).
_REFERENCES: Final = frozenset(
    {
        "function",
        "stand_in",
        "kernel",
        "pinned_kernel",
        "tf_function_by_name",
        "pinned_tf_function",
        "torch_compiled",
        "torch_script_function_named",
    }
)
_TORCH_TYPES: Final = {
    "DoubleStorage": ("float64", 8), "FloatStorage": ("float32", 4), "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8), "IntStorage": ("int32", 4), "ShortStorage": ("int16", 2), "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1), "BoolStorage": ("bool", 1), "ComplexFloatStorage": ("complex64", 8),
    "ComplexDoubleStorage": ("complex128", 16), "UntypedStorage": ("bytes", 1),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a pickle, several in a row, or a file of torch.save")
    parser.add_argument(
        "--resolve",
        action="store_true",
        help="look whether each name is here; this imports the modules that the file names",
    )
    parser.add_argument("--no-source", action="store_true", help="leave out the source text of functions")
    parser.add_argument(
        "--most", type=int, default=40, metavar="N", help="how many rows of each kind (default: %(default)s)"
    )


# -- what the nodes mean -----------------------------------------------------------------------------------------------


def _reference(node: Node) -> str | None:
    """The name that a reference of ours leads to."""
    name = node.name or ""
    if node.kind != "call" or not name.startswith(_RESTORE) or name.rpartition(".")[2] not in _REFERENCES:
        return None
    if len(node.children) < 2:
        return None
    module, qualname, path = (*[child.plain() for child in node.children[:3]], ())[:3]
    return ".".join([f"{module}:{qualname}", *(path if isinstance(path, tuple) else ())])


def pin(node: Node) -> tuple[str, str] | None:
    """The name and the hash of the source of a pinned reference."""
    name = _reference(node)
    if name is None or not (node.name or "").rpartition(".")[2].startswith("pinned_") or len(node.children) < 5:
        return None
    digest = node.children[3].plain()
    return (name, digest) if isinstance(digest, str) else None


def _function(node: Node) -> dict[str, Any] | None:
    """A function by value: its name, the Python that wrote it, its text."""
    if node.kind != "call" or node.name != f"{_RESTORE}make_function" or len(node.children) < 5:
        return None
    code, _, name, _, source = node.children[:5]
    stamp = code.children[0].plain() if code.kind == "call" and code.children else None
    text = source.children[-2].plain() if source.kind == "tuple" and len(source.children) >= 2 else None
    line = source.children[-1].plain() if source.kind == "tuple" and source.children else None
    return {"name": name.plain(), "python": stamp, "line": line, "source": text if isinstance(text, str) else None}


def _tensor(node: Node) -> dict[str, Any] | None:
    if node.kind != "call":
        return None
    if node.name == f"{_RESTORE}torch_tensor" and len(node.children) >= 4:
        dtype, size = node.children[2].name, node.children[3].plain()
        data = node.children[1]
        return {
            "dtype": (dtype or "?").rpartition(".")[2],
            "shape": _shape(size),
            "bytes": data.end - data.start,
            "place": "here",
        }
    if (node.name or "").startswith("torch._utils._rebuild_tensor") and len(node.children) >= 3:
        storage = node.children[0].value if node.children[0].kind == "persistent" else None
        parts = storage.children if isinstance(storage, Node) and storage.kind == "tuple" else []
        kind = (parts[1].name or "?").rpartition(".")[2] if len(parts) > 1 else "?"
        dtype, width = _TORCH_TYPES.get(kind, (kind, 1))
        elements = parts[4].plain() if len(parts) > 4 else None
        count = elements * width if isinstance(elements, int) else None
        key = parts[2].plain() if len(parts) > 2 else "?"
        return {"dtype": dtype, "shape": _shape(node.children[2].plain()), "bytes": count, "place": f"record {key}"}
    return None


def _shape(size: Any) -> list[Any]:
    return list(size) if isinstance(size, tuple) else [str(size)]


def _parts(found: Anatomy) -> list[dict[str, Any]]:
    """The top-level parts of the object with the bytes that each takes."""
    root = found.root
    if root is None:
        return []
    for node in (root, root.state):
        if node is not None and node.sizes:
            return [
                {"part": label, "bytes": size} for label, size in sorted(node.sizes.items(), key=lambda item: -item[1])
            ]
    return []


def describe(found: Anatomy, *, resolve: bool = False) -> dict[str, Any]:
    """What is known about one pickle, as plain data.

    Args:
        found: what was read.
        resolve: also look whether each name leads somewhere here, which imports the modules.
    """
    pins = [{"name": p[0], "source": p[1]} for node in found.nodes if (p := pin(node)) is not None]
    functions = [f for node in found.nodes if (f := _function(node)) is not None]
    references = sorted({r for node in found.nodes if (r := _reference(node)) is not None})
    tensors = [t for node in found.nodes if (t := _tensor(node)) is not None]
    names = [
        {"name": name, "times": times}
        for name, times in sorted(found.globals.items(), key=lambda item: (-item[1], item[0]))
    ]
    stamps = sorted({f["python"] for f in functions if isinstance(f["python"], str)})
    result: dict[str, Any] = {
        "protocol": found.protocol, "start": found.start, "end": found.end, "opcodes": found.opcodes, "python": stamps,
        "problem": found.problem, "object": None if found.root is None else (found.root.name or found.root.kind),
        "globals": names, "references": [{"name": name} for name in references], "functions": functions,
        "tensors": tensors, "pins": pins,
        "parts": _parts(found),
    }  # fmt: skip
    if resolve:
        for entry in [*result["globals"], *result["references"]]:
            entry["here"] = resolves(entry["name"])
    return result


# -- printing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress(path: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar for large files, on the error stream, where rich is installed and somebody looks."""
    if total < 64 << 20 or not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(path, total=total)
        yield lambda position: bar.update(task, completed=position)


def read_with_progress(path: str) -> Document:
    """Read a file, and show how far it is.

    Raises:
        OSError: the file cannot be read.
    """
    from pathlib import Path

    with _progress(path, Path(path).stat().st_size) as progress:
        return read_file(path, progress)


def run(arguments: argparse.Namespace) -> int:
    """Describe the files; status 1 for a malformed one or a name that is not here, 2 for one that cannot be read."""
    status, results = 0, []
    for path in arguments.files:
        try:
            document = read_with_progress(path)
        except OSError as error:
            print(f"{path}: {error.strerror or error}", file=sys.stderr)
            status = 2
            continue
        pickles = [describe(found, resolve=arguments.resolve) for found in document.pickles]
        result = {"file": path, "format": document.format, "bytes": document.size, "problem": document.problem,
                  "pickles": pickles, "records": document.records}  # fmt: skip
        results.append(result)
        missing = any(entry.get("here") is False for p in pickles for entry in [*p["globals"], *p["references"]])
        if (document.problem or missing) and status == 0:
            status = 1
    if arguments.json:
        print(json.dumps(results, indent=2, default=str))
    else:
        for result in results:
            _print(result, arguments)
    return status


def _print(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    print(f"{result['file']}: {result['format']}, {result['bytes']:,} bytes, {_count(result['pickles'], 'pickle')}")
    if result["problem"]:
        print(f"  malformed: {result['problem']}")
    for number, found in enumerate(result["pickles"]):
        stamp = f", functions by Python {', '.join(found['python'])}" if found["python"] else ""
        size = f"{found['end'] - found['start']:,} bytes"
        print(f"\npickle {number}: protocol {found['protocol']}, {size}, holds {found['object']}{stamp}")
        most = arguments.most
        for title, columns, rows in _sections(found):
            if rows:
                more = f" (the first {most} of {len(rows)})" if len(rows) > most else ""
                print_table(title + more, columns, rows[:most])
        for function in found["functions"][:most]:
            print(f"\nfunction by value: {function['name']}, line {function['line']}")
            if function["source"] and not arguments.no_source:
                print("    " + function["source"].rstrip().replace("\n", "\n    "))
    if result["records"]:
        print_table(
            "records",
            ("record", "bytes"),
            [(name, f"{size:,}") for name, size in list(result["records"].items())[: arguments.most]],
        )


def _sections(found: dict[str, Any]) -> list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """The tables about one pickle: title, columns, rows."""
    here = {True: ("yes",), False: ("no",), None: ()}  # a column that is there if it was looked for
    column = ("here",) if any("here" in e for e in [*found["globals"], *found["references"]]) else ()
    names = [(e["name"], str(e["times"]), *here[e.get("here")]) for e in found["globals"]]
    references = [(e["name"], *here[e.get("here")]) for e in found["references"]]
    tensors = [(t["dtype"], str(tuple(t["shape"])), _bytes(t["bytes"]), t["place"]) for t in found["tensors"]]
    parts = [(p["part"], _bytes(p["bytes"])) for p in found["parts"]]
    return [
        ("names", ("name", "times", *column), names),
        ("by reference", ("name", *column), references),
        ("tensors", ("dtype", "shape", "bytes", "where"), tensors),
        ("size by part", ("part", "bytes"), parts),
    ]


def _bytes(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _count(items: list[Any], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
