"""Writes the generated parts of README.md: the policy table from the rules, the comparison from the demo.

``python ci/readme.py`` rewrites both; ``--check`` only says whether the policy table is up to date (exit status 1 if
not).
"""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
POLICY = "rules --installed --markdown"
COMPARISON = "demo --markdown"


def command(arguments: str) -> str:
    """What ``python -m safepickle`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "safepickle", *arguments.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=README.parent,
    )
    return done.stdout.strip()


def block(name: str) -> "re.Pattern[str]":
    return re.compile(rf"(<!-- {name}: [^>]* -->\n)(.*?)(<!-- end of {name} -->)", re.DOTALL)


def with_block(text: str, name: str, content: str) -> str:
    return block(name).sub(lambda found: f"{found[1]}\n{content}\n\n{found[3]}", text)


def current(text: str, name: str) -> str:
    found = block(name).search(text)
    assert found is not None, f"README.md has no block {name!r}"
    return found[2].strip()


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    policy = command(POLICY)
    if "--check" in sys.argv[1:]:
        sys.exit(
            0 if current(text, "policy table") == policy else "README.md: the policy table is not that of the rules"
        )
    text = with_block(text, "policy table", policy)
    README.write_text(with_block(text, "comparison", command(COMPARISON)), encoding="utf-8")
