"""What will happen to this object: what cannot go, what goes by name, what by value, and how large is it?"""

from __future__ import annotations

import html
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from . import restore
from .copier import deepcopy
from .diagnosis import describe
from .errors import type_name
from .path_syntax import Segment, join, notes_of, path_of, segments, shown_parts
from .paths import CONTAINERS, LEAVES, CopyQuestions, Finding, Node, PickleQuestions, Walk, chain_of_copy
from .pickler import Pickler, _Answers
from .references import inner_function
from .registry import Registry, Share, default_registry
from .sources import ByValue

__all__ = ["ByName", "Code", "Part", "Problem", "Report", "Shared", "explain"]

#: Copies are tried for real up to this size; of larger objects the parts are asked.
MOST_COPIED: Final = 64 << 20
#: How many parts are measured on their own, and how deep they are shown.
MOST_PARTS: Final = 2000
DEEPEST_PART: Final = 3
#: A part that a function takes along is named from this size on.
LARGE: Final = 10_000


@dataclass(frozen=True)
class Problem:
    """Something that cannot go.

    Attributes:
        verb: ``"pickle"`` or ``"copy"``.
        path: where it is, from the root, which is called ``obj``.
        type_name: its type.
        notes: the functions and classes that the path goes through.
        reason: what says so.
        hint: what to do about it.
    """

    verb: str
    path: str
    type_name: str
    notes: tuple[str, ...]
    reason: str
    hint: str | None


@dataclass(frozen=True)
class ByName:
    """Something that goes by reference: the name is written, and has to lead to the same thing where it is loaded."""

    name: str
    path: str


@dataclass(frozen=True)
class Code:
    """A function, class, module or kernel that goes by value.

    Attributes:
        kind: what it is.
        name: how it is called.
        path: where it was met first.
        size: bytes, with all that it takes along.
        takes: what is large of that: path and bytes.
    """

    kind: str
    name: str
    path: str
    size: int
    takes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Shared:
    """Objects of one type that a copy shares with the original."""

    type_name: str
    count: int
    path: str


@dataclass(frozen=True)
class Part:
    """How many bytes of the pickle a part takes; what several parts hold is counted where it comes first."""

    path: str
    type_name: str
    size: int
    parts: tuple[Part, ...] = ()


@dataclass
class Report:
    """What :func:`explain` found. ``str`` gives it as text; notebooks show a table, and ``rich.print`` a tree.

    Attributes:
        type_name: the type of the object.
        problems: all that cannot go, for each verb.
        by_name: what goes by reference, and to which name.
        by_value: the code that goes by value.
        shared: what a deep copy shares with the original.
        size: bytes of the pickle, without what cannot go; ``None`` where it could not be made.
        parts: the size by part.
        remarks: where the report is not complete.
    """

    type_name: str
    problems: list[Problem] = field(default_factory=list)
    by_name: list[ByName] = field(default_factory=list)
    by_value: list[Code] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    size: int | None = None
    parts: tuple[Part, ...] = ()
    remarks: list[str] = field(default_factory=list)

    def can(self, verb: str) -> bool:
        """Whether nothing was found that keeps it from being pickled (``"pickle"``) or deep-copied (``"copy"``)."""
        return not any(problem.verb == verb for problem in self.problems)

    def title(self) -> str:
        """The report in one line."""
        answers = []
        for verb, participle in _VERBS.items():
            count = sum(problem.verb == verb for problem in self.problems)
            problems = "problem" if count == 1 else "problems"
            answers.append(f"cannot be {participle} ({count} {problems})" if count else f"can be {participle}")
        size = "" if self.size is None else f"; {readable_size(self.size)} as a pickle"
        return f"{self.type_name!r}: {', '.join(answers)}{size}"

    def __str__(self) -> str:
        return "\n".join(_as_text(_tree(self)))

    def __rich__(self) -> Any:
        from rich.text import Text
        from rich.tree import Tree

        def grow(branch: Any, entry: _Entry) -> Any:
            for child in entry.children:
                grow(branch.add(Text(child.text)), child)
            return branch

        tree = _tree(self)
        return grow(Tree(Text(tree.text)), tree)

    def _repr_html_(self) -> str:
        rows = []
        for section in _tree(self).children:
            body = "<br>".join(html.escape(line) for child in section.children for line in _as_text(child))
            rows.append(f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(section.text)}</th>"
                        f"<td style='text-align:left;white-space:pre-wrap'>{body}</td></tr>")  # fmt: skip
        caption = f"<caption style='text-align:left'>{html.escape(self.title())}</caption>"
        return f"<table>{caption}{''.join(rows)}</table>"


_VERBS: Final = {"pickle": "pickled", "copy": "deep-copied"}


def explain(obj: Any, *, registry: Registry | None = None, protocol: int | None = None) -> Report:
    """Say what pickling and deep-copying an object would do, without stopping at the first thing that cannot go.

    The object's own methods of pickling are asked, as pickling would; a small object is also copied. Nothing is
    written.

    Args:
        obj: the object.
        registry: the rules to use; the default registry unless given.
        protocol: the pickle protocol, as for :func:`safepickle.dumps`.

    Returns:
        The report.

    Example:
        >>> import safepickle
        >>> report = safepickle.explain({"rows": [1, 2], "source": (row for row in ())})
        >>> report.can("pickle"), report.problems[0].path
        (False, "obj['source']")
    """
    rules = default_registry if registry is None else registry
    report = Report(type_name(obj))
    surveyor = _Surveyor(obj, rules, protocol)
    surveyor.survey(report)
    surveyor.measure(report)
    _try_copying(report, obj, rules)
    return report


# -- pickling ----------------------------------------------------------------------------------------------------------


class _Counter:
    """A file that only counts."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.size += count
        return count


class _Scales(Pickler):
    """Measures parts: leaves out what cannot go, and writes what was measured before as a reference to it."""

    def __init__(self, registry: Registry, protocol: int | None, left_out: dict[int, Any]) -> None:
        self.counter = _Counter()
        super().__init__(self.counter, protocol, registry=registry)
        self._left_out = left_out
        # An identity of what goes by value would be made from all its parts, and fail where one of them cannot go.
        self.canonical = bool(left_out)

    def persistent_id(self, obj: Any) -> Any:
        return "0" if id(obj) in self._left_out else None

    def weigh(self, obj: Any) -> int:
        """How many bytes more the object takes."""
        before = self.counter.size
        self.dump(obj)
        return self.counter.size - before


class _Surveyor:
    """Goes through an object as the pickler would, and sorts what it meets."""

    def __init__(self, obj: Any, registry: Registry, protocol: int | None) -> None:
        self.obj = obj
        self.registry = registry
        self.protocol = protocol
        self.left_out: dict[int, Any] = {}
        self.code: list[Node] = []
        self.seen: dict[int, Any] = {}

    def survey(self, report: Report) -> None:
        """Find what cannot go, what goes by name, and the code that goes by value."""
        pickler = Pickler(_Counter(), self.protocol, registry=self.registry)
        pickler.by_value, pickler._root, pickler.canonical = ByValue(), self.obj, True
        questions = _Listening(pickler)
        walk = Walk(self.obj, questions)
        for finding in walk:
            self.left_out[id(finding.node.obj)] = finding.node.obj
            report.problems.append(_problem("pickle", finding, self.obj))
        if walk.gave_up:
            report.remarks.append(f"only the first {walk.looked_at:,} objects were looked at")
        names: dict[str, ByName] = {}
        for node, name in questions.named:
            names.setdefault(name, ByName(name, path_of(node)))
        report.by_name = [names[name] for name in sorted(names)]
        self.code, self.seen = questions.code, walk.seen

    def measure(self, report: Report) -> None:
        """Weigh the object, its parts, and the code in it."""
        for node in self.code[:MOST_PARTS]:
            if (code := self._measure_code(node)) is not None:
                report.by_value.append(code)
        scales = _Scales(self.registry, self.protocol, self.left_out)
        budget = [MOST_PARTS]
        try:
            whole = self._measure_part(self.obj, [], scales, budget, 0)
        except Exception as error:  # something that the survey did not see
            details = describe("pickle", error, self.obj, None)
            report.remarks.append(f"the size is not known: {details.reason}")
            return
        report.size, report.parts = whole.size, whole.parts

    def _measure_part(self, obj: Any, path: list[Segment], scales: _Scales, budget: list[int], depth: int) -> Part:
        parts = []
        if depth < DEEPEST_PART and id(obj) not in self.left_out:
            shown = [one for one in shown_parts(obj) if self._is_pickled(one[1], obj)]
            if len(shown) <= budget[0]:
                budget[0] -= len(shown)
                parts = [self._measure_part(part, [*path, step], scales, budget, depth + 1) for step, part in shown]
        size = sum(part.size for part in parts) + scales.weigh(obj)
        return Part(join(path), type_name(obj), size, tuple(parts))

    def _is_pickled(self, part: Any, holder: Any) -> bool:
        """Whether a part is pickled with its holder: what a rule leaves out has no size, and need not be able to go."""
        if type(part) in LEAVES:
            return type(holder) in (*CONTAINERS, types.FunctionType) or not self.registry.rules_for(
                type(holder), "pickle"
            )
        return id(part) in self.seen and id(part) not in self.left_out

    def _measure_code(self, node: Node) -> Code | None:
        try:
            size = self._alone(node.obj)
        except Exception:  # it holds something that the survey did not see
            return None
        takes: list[tuple[str, int]] = []
        if size >= LARGE:
            path = segments(node.chain())
            for step, part in shown_parts(node.obj):
                if not self._is_pickled(part, node.obj):
                    continue
                taken = self._alone(part)
                if taken >= LARGE:
                    takes.append((join([*path, step]), taken))
        return Code(_kind(node), _name(node.obj), path_of(node), size, tuple(sorted(takes, key=lambda one: -one[1])))

    def _alone(self, obj: Any) -> int:
        return _Scales(self.registry, self.protocol, self.left_out).weigh(obj)


class _Listening(PickleQuestions):
    """Asks what the pickler asks, and notes what is answered with a name, or with code."""

    def __init__(self, pickler: Pickler) -> None:
        super().__init__(pickler, override=pickler._override(_Answers(pickler)))
        self.named: list[tuple[Node, str]] = []
        self.code: list[Node] = []

    def parts(self, node: Node) -> Any:
        parts = super().parts(node)
        name = _reference(node)
        if name is not None:
            if name.partition(":")[0] not in _OWN_MODULES:
                self.named.append((node, name))
        elif _kind(node):
            self.code.append(node)
        return parts


#: Names that every pickle may hold; they say nothing about the object.
_OWN_MODULES: Final = frozenset({"builtins", "copyreg", "safepickle.restore"})


def _reference(node: Node) -> str | None:
    """The name that an object goes by; ``None`` where it does not go by name."""
    reduced, obj = node.reduced, node.obj
    if isinstance(reduced, str):
        return f"{_module_of(obj, reduced)}:{reduced}"
    if reduced is NotImplemented:
        return f"{_module_of(obj, '')}:{getattr(obj, '__qualname__', '?')}"
    if not isinstance(reduced, tuple) or getattr(reduced[0], "__module__", None) != restore.__name__:
        return None
    if reduced[0] is restore.submodule:
        return str(reduced[1][0])
    if len(reduced) == 2 and len(reduced[1]) >= 2 and all(isinstance(part, str) for part in reduced[1][:2]):
        module, name, *path = reduced[1]
        below = path[0] if path and isinstance(path[0], tuple) else ()
        return ".".join([f"{module}:{name}", *map(str, below)])
    return None


def _module_of(obj: Any, name: str) -> str:
    module = getattr(obj, "__module__", None)
    if isinstance(module, str):
        return module
    from pickle import whichmodule  # type: ignore[attr-defined]

    return str(whichmodule(obj, name))


def _kind(node: Node) -> str:
    """What kind of code goes by value here; empty for what is none."""
    reduced = node.reduced
    if not isinstance(reduced, tuple) or getattr(reduced[0], "__module__", None) != restore.__name__:
        return ""
    if isinstance(node.obj, type):
        return "class"
    if type(node.obj) is types.ModuleType:
        return "module"
    if type(node.obj) is types.FunctionType:
        return "function"
    if isinstance(node.obj, (types.MethodType, types.CodeType, types.CellType)) or inner_function(node.obj) is None:
        return ""
    return type(node.obj).__qualname__


def _name(obj: Any) -> str:
    named = obj if isinstance(obj, (type, types.FunctionType)) else inner_function(obj) or obj
    return str(getattr(named, "__qualname__", getattr(named, "__name__", "?")))


def _problem(verb: str, finding: Finding, root: Any) -> Problem:
    steps = segments(finding.node.chain())
    details = describe(verb, finding.error, root, (None, finding.node, finding.error))
    return Problem(
        verb, details.path or join(steps), details.type_name, tuple(notes_of(steps)), details.reason, details.hint
    )


# -- copying -----------------------------------------------------------------------------------------------------------


def _try_copying(report: Report, obj: Any, registry: Registry) -> None:
    """Find what a deep copy shares, and what it cannot copy: by trying, or where that is too large, by asking."""
    questions = _Sharing(registry)
    walk = Walk(obj, questions)
    findings = list(walk)
    memo: dict[Any, Any] = {}
    if report.size is not None and report.size <= MOST_COPIED and not walk.gave_up:
        findings, memo = _failures_of_copies(obj, registry)
    else:
        findings = [finding for finding in findings if _fails_to_copy(finding.node.obj, registry)]
        report.remarks.append("no copy was tried: what cannot be copied was found by asking")
    report.problems += [_problem("copy", finding, obj) for finding in findings]
    shared: dict[str, Shared] = {}
    for node in questions.shared:
        if memo.get(id(node.obj), node.obj) is node.obj:  # a function whose closure was copied is not shared after all
            name = type_name(node.obj)
            known = shared.get(name)
            shared[name] = Shared(name, 1, path_of(node)) if known is None else replace(known, count=known.count + 1)
    report.shared = [shared[name] for name in sorted(shared)]


def _failures_of_copies(obj: Any, registry: Registry, most: int = 50) -> tuple[list[Finding], dict[Any, Any]]:
    """Copy again and again, each time passing over what failed before. Returns the failures and the last memo."""
    findings: list[Finding] = []
    passed: dict[Any, Any] = {}
    memo: dict[Any, Any] = {}
    while len(findings) < most:
        memo = dict(passed)
        try:
            deepcopy(obj, memo, registry=registry)
        except Exception as error:
            original = error.__cause__ if isinstance(error.__cause__, Exception) else error
            node = chain_of_copy(original, obj)
            if id(node.obj) in passed:
                break
            passed[id(node.obj)] = node.obj
            findings.append(Finding(node, original))
        else:
            break
    return findings, memo


def _fails_to_copy(obj: Any, registry: Registry) -> bool:
    try:
        deepcopy(obj, registry=registry)
    except Exception:
        return True
    return False


class _Sharing(CopyQuestions):
    """Asks what the copier asks, and notes what it shares as it seems."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.shared: list[Node] = []

    def parts(self, node: Node) -> Any:
        parts = super().parts(node)
        obj = node.obj
        if self._is_shared(obj) and getattr(obj, "__module__", None) not in _OWN_MODULES:
            self.shared.append(node)
        return parts

    def _is_shared(self, obj: Any) -> bool:
        if type(obj) is types.FunctionType:
            return True
        rules = self._registry.rules_for(type(obj), "copy")
        return any(isinstance(rule.copy, Share) and rule.copy(obj) is obj for rule in rules)


# -- showing -----------------------------------------------------------------------------------------------------------


@dataclass
class _Entry:
    """A line of the report with the lines below it."""

    text: str
    children: list[_Entry] = field(default_factory=list)


#: Of longer lists the first ones are shown.
_MOST_SHOWN: Final = 20


def _tree(report: Report) -> _Entry:
    root = _Entry(report.title())
    for verb, participle in _VERBS.items():
        problems = [problem for problem in report.problems if problem.verb == verb]
        _add(root, f"cannot be {participle}", [_problem_entry(problem) for problem in problems])
    _add(root, "by name", [_Entry(f"{one.name}  at {one.path}") for one in report.by_name])
    _add(root, "by value", [_code_entry(code) for code in sorted(report.by_value, key=lambda code: -code.size)])
    _add(
        root,
        "shared by deep copies",
        [_Entry(f"{one.count} × {one.type_name}  at {one.path}") for one in report.shared],
    )
    _add(root, "size by part", _part_entries(report.parts, report.size or 0))
    _add(root, "remarks", [_Entry(remark) for remark in report.remarks])
    return root


def _add(root: _Entry, title: str, entries: list[_Entry]) -> None:
    if not entries:
        return
    more = len(entries) - _MOST_SHOWN
    shown = entries if more <= 0 else [*entries[:_MOST_SHOWN], _Entry(f"... and {more} more")]
    root.children.append(_Entry(title, shown))


def _problem_entry(problem: Problem) -> _Entry:
    lines = [*problem.notes, f"reason: {problem.reason}", *([f"hint: {problem.hint}"] if problem.hint else [])]
    return _Entry(f"{problem.path}  {problem.type_name!r}", [_Entry(line) for line in lines])


def _code_entry(code: Code) -> _Entry:
    takes = [_Entry(f"takes along {path}  {readable_size(size)}") for path, size in code.takes]
    return _Entry(f"{code.kind} {code.name!r}  {readable_size(code.size)}  at {code.path}", takes)


def _part_entries(parts: tuple[Part, ...], total: int) -> list[_Entry]:
    """The parts that matter, the largest first, and the rest in one line."""
    ordered = sorted(parts, key=lambda part: -part.size)
    large = [part for part in ordered[:_MOST_SHOWN] if part.size * 100 >= total or part.size >= LARGE]
    entries = [
        _Entry(f"{part.path}  {part.type_name!r}  {readable_size(part.size)}", _part_entries(part.parts, total))
        for part in large
    ]
    rest = ordered[len(large) :]
    if rest and large:
        entries.append(_Entry(f"{len(rest)} smaller  {readable_size(sum(part.size for part in rest))}"))
    return entries


def _as_text(entry: _Entry, indent: str = "") -> Iterator[str]:
    yield indent + entry.text.replace("\n", "\n" + indent)
    for child in entry.children:
        yield from _as_text(child, indent + "  ")


def readable_size(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
