"""``broadcast_object_list`` between two ranks of ``torch.distributed``, over gloo on loopback."""

from __future__ import annotations

import datetime
import io
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import safepickle

from .trips import LIMIT, first_line, make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "torch.distributed objects"
NEEDS = ("torch", "triton")


class _Peer:
    """The other rank, in a process of its own; begun anew where it has got stuck."""

    def __init__(self, installed: bool) -> None:
        self.installed = installed
        self.process: Any = None
        self.start()

    def start(self) -> None:
        """A new process, and a new group with it."""
        if self.process is not None:
            self.process.kill()
            dist.destroy_process_group()
        meet = str(Path(tempfile.mkdtemp(prefix="safepickle-proof-"), "meet"))
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_other_rank, args=(meet, theirs, self.installed), daemon=True)
        self.process.start()
        _join(meet, 0)

    def there(self, payload: Any) -> str:
        """Broadcast it from here; what the other rank says of it."""
        self.pipe.send("receive")
        try:
            dist.broadcast_object_list([payload], src=0)
        except Exception as error:
            waits = not self.pipe.poll(2)
            self.start()
            return first_line(error) + ("; the other rank waits" if waits else "")
        return str(self.pipe.recv())

    def back(self, name: str) -> Any:
        """Broadcast it from there."""
        self.pipe.send(name)
        objects = [None]
        try:
            dist.broadcast_object_list(objects, src=1)
        except RuntimeError as error:
            if "Connection closed by peer" not in str(error):
                raise
            raise RuntimeError("[...] Connection closed by peer [...]: the other rank has raised and ended") from error
        return objects[0]


def _join(meet: str, rank: int) -> None:
    # Longer than an attempt may take: waiting for this time is what a hang looks like.
    timeout = datetime.timedelta(seconds=3 * LIMIT)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2, timeout=timeout)


def _other_rank(meet: str, pipe: Any, installed: bool) -> None:
    if installed:
        safepickle.install("torch.distributed")
    _join(meet, 1)
    while True:
        command = pipe.recv()
        if command == "receive":
            objects = [None]
            dist.broadcast_object_list(objects, src=0)
            pipe.send(use(objects[0]))
        else:
            dist.broadcast_object_list([make(command)], src=1)


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    if installed:
        safepickle.install("torch.distributed")
    peer = _Peer(installed)
    return trip(make_payload, peer.there, peer.back, _size)


def _size(payload: Any) -> int:
    file = io.BytesIO()
    c10d._pickler(file).dump(payload)
    return file.tell()
