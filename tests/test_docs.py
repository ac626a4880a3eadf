"""Does what the documentation shows do what it says?

Every fenced block that is tagged ``python run`` is run as a script of its own, in a fresh process. A page says in its
first comment which packages or programs its blocks need: ``<!-- needs: ray, torch -->``.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from safepickle.engines import MODULES

from .helpers import REPOSITORY, run_python

PAGES = sorted([*REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md"])

_BLOCK = re.compile(r"^```python run[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"<!--(.*?)-->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)\s]*)?\)")


class Block(NamedTuple):
    page: Path
    number: int
    code: str
    needs: tuple[str, ...]


def needs_of(text: str) -> tuple[str, ...]:
    """What the first comment of a page says is needed."""
    comment = _NEEDS.search(text)
    if comment is None or not comment.group(1).strip().startswith("needs:"):
        return ()
    return tuple(name.strip() for name in comment.group(1).strip().removeprefix("needs:").split(",") if name.strip())


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    needs = needs_of(text)
    return [Block(page, number, match.group(1), needs) for number, match in enumerate(_BLOCK.finditer(text), 1)]


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def is_here(needed: str) -> bool:
    """Whether a package, or else a program, is installed; nothing is imported for it."""
    try:
        found = importlib.util.find_spec(needed) is not None
    except (ModuleNotFoundError, ValueError):
        found = False
    return found or shutil.which(needed) is not None


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", BLOCKS, ids=[f"{name(block.page)}-{block.number}" for block in BLOCKS])
def test_a_block_of_the_documentation_runs(block, tmp_path):
    for needed in block.needs:
        if not is_here(needed):
            pytest.skip(f"{needed} is not installed")
    run_python(block.code, timeout=240, env={"SAFEPICKLE_PURE": None})


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_the_documentation_lead_to_files(page):
    for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        assert (page.parent / target).exists(), f"{name(page)} has a link to {target}"


def test_a_block_is_found_with_what_its_page_needs(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- needs: one, two -->\n# Title\n\n```python run\nx = 1\n```\n\n```python\nshown only\n```\n\n"
        "```python run\nx = 2\n\ny = 3\n```\n"
    )
    assert [(block.number, block.code, block.needs) for block in blocks_of(page)] == [
        (1, "x = 1\n", ("one", "two")),
        (2, "x = 2\n\ny = 3\n", ("one", "two")),
    ]
    assert needs_of("# no comment\n<!-- something else -->") == ()
    assert is_here("json") and not is_here("no_such_thing") and not is_here("no_such.thing")


def test_every_engine_has_a_page_that_the_index_leads_to():
    folder = REPOSITORY / "docs" / "engines"
    pages = {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md") if page.name != "README.md"}
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in pages:
        assert f"]({page})" in index, f"docs/engines/README.md has no link to {page}"
    for engine in MODULES:
        assert any(f'"{engine}"' in text for text in pages.values()), f"no page shows install({engine!r})"
