"""One script a question; each prints a table and writes JSON. See README.md in this folder."""

__all__: list[str] = []
