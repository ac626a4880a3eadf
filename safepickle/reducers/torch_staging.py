"""How do the contents of tensors on a device get into a pickle while earlier ones are being written?

Through pinned memory, a few tensors ahead: as soon as one is asked for, the copies of those that follow begin, on a
stream of their own, and go on while the pickler writes. They are found by looking through the containers and modules
that are dumped; a tensor that was not found there is copied when it is asked for.

What is in-band lies in pinned memory only until the next one is asked for: the pickler has written it by then.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

__all__ = ["AHEAD", "Staging", "Transfers", "storages_in"]

#: How many bytes are on their way or wait to be written, besides those that are asked for.
AHEAD: Final = 256 << 20

#: Storages up to this size travel together, up to so many bytes at once.
SMALL: Final = 1 << 16
TOGETHER: Final = 8 << 20

#: Objects that are looked through for storages on a device before the search gives up.
MOST_OBJECTS: Final = 200_000


class Transfers:
    """Copies from a device into pinned memory, on a stream beside the one that computes."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def start(self, storages: list[torch.UntypedStorage]) -> tuple[list[torch.Tensor], Any]:
        """Begin to copy storages of one device; returns where the bytes will be and what tells that they are."""
        device = storages[0].device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))  # what computes the contents comes first
        sources = [torch.empty(0, dtype=torch.uint8, device=device).set_(storage) for storage in storages]
        with torch.cuda.device(device), torch.cuda.stream(stream):
            whole = sources[0] if len(sources) == 1 else torch.cat(sources)
            target = torch.empty(whole.numel(), dtype=torch.uint8, device="cpu", pin_memory=True)
            target.copy_(whole, non_blocking=True)
            done = stream.record_event()
        for source in sources:
            source.record_stream(stream)
        return list(target.split([source.numel() for source in sources])), done


class _Arrival(NamedTuple):
    storage: torch.UntypedStorage  # kept alive: it is known by its address
    target: torch.Tensor
    done: Any


class Staging:
    """The bytes of storages on devices for one dump.

    Args:
        root: what is dumped.
        wanted: says of a storage whether it is on a device that this is for.
        transfers: makes the copies.
        ahead: how many bytes may be on their way.
    """

    def __init__(
        self, root: Any, wanted: Callable[[torch.UntypedStorage], bool], transfers: Any, ahead: int = AHEAD
    ) -> None:
        self._coming = storages_in(root, wanted)
        self._transfers = transfers
        self._ahead = ahead
        self._arrivals: dict[int, _Arrival] = {}
        self._bytes = 0
        self._handed_out: dict[int, torch.UntypedStorage] = {}
        self._written: pickle.PickleBuffer | None = None

    def bytes_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The bytes of a storage, on the CPU; the copies of the next ones are on their way when this returns."""
        if self._written is not None:
            self._written.release()  # the pickler keeps the buffer itself, but is through with what it shows
            self._written = None
        key = storage._cdata
        if key not in self._arrivals:
            self._start([storage])
        arrival = self._arrivals.pop(key)
        self._bytes -= storage.nbytes()
        self._handed_out[key] = storage
        self._start_more()
        arrival.done.synchronize()
        return arrival.target

    def written_next(self, buffer: pickle.PickleBuffer) -> None:
        """The pickler is about to write this buffer, in-band, to somebody who copies it; then its memory is free."""
        self._written = buffer

    def _start(self, storages: list[torch.UntypedStorage]) -> None:
        targets, done = self._transfers.start(storages)
        for storage, target in zip(storages, targets, strict=True):
            self._arrivals[storage._cdata] = _Arrival(storage, target, done)
            self._bytes += storage.nbytes()

    def _start_more(self) -> None:
        # Not before there is room for as much as goes together: many small launches are what this avoids.
        while self._bytes <= max(0, self._ahead - TOGETHER) and (window := self._window()):
            together: dict[torch.device, list[torch.UntypedStorage]] = {}
            for storage in window:
                if storage.nbytes() <= SMALL:
                    together.setdefault(storage.device, []).append(storage)
                else:
                    self._start([storage])
            for storages in together.values():
                self._start(storages)

    def _window(self) -> list[torch.UntypedStorage]:
        """The storages that come next, as many as may go together."""
        window: dict[int, torch.UntypedStorage] = {}
        size = 0
        while size < max(1, TOGETHER) and (storage := next(self._coming, None)) is not None:
            key = storage._cdata
            if key not in self._arrivals and key not in self._handed_out and key not in window:
                window[key] = storage
                size += storage.nbytes()
        return list(window.values())


def storages_in(root: Any, wanted: Callable[[torch.UntypedStorage], bool]) -> Iterator[torch.UntypedStorage]:
    """The storages of tensors in builtin containers, modules and plain instances, in the order of a pickle.

    A guess, of which nothing depends but the time: it runs no code of the objects that it looks at.
    """
    seen: set[int] = set()
    stack: list[Any] = [root]
    while stack and len(seen) < MOST_OBJECTS:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        cls = type(part)
        if cls is torch.Tensor or cls is torch.nn.Parameter:
            try:
                storage = part.untyped_storage()
            except Exception:  # a layout without one
                continue
            if wanted(storage) and storage.nbytes():
                yield storage
            if part.is_leaf and part.grad is not None:
                stack.append(part.grad)
        elif cls in (dict, collections.OrderedDict, collections.defaultdict):
            stack.extend(reversed(list(part.values())))
        elif cls in (list, tuple, collections.deque):
            stack.extend(reversed(part))
        elif isinstance(part, (torch.nn.Module, torch.optim.Optimizer)):
            stack.append(object.__getattribute__(part, "__dict__"))
