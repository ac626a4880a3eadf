"""What is pickled and copied in the benchmarks. Importable, so that every pickler sends the classes by name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Record", "records"]


@dataclass
class Record:
    """A plain instance, as programs hold them by the thousand."""

    number: int
    values: list[int]
    names: dict[str, int]


def records(count: int) -> list[Record]:
    return [Record(number, [number, number + 1], {"a": number}) for number in range(count)]
