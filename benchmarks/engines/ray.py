"""Ray: a task's argument and a result, with one local instance."""

from __future__ import annotations

import os
import secrets
import tempfile
from typing import Any

#: Read when Ray is imported, or by what it starts: it stays on loopback, tells nobody, and writes no token at home.
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_memory_monitor_refresh_ms="0",
)  # fmt: skip

import ray

import safepickle.engines.ray

from ..common import REPOSITORY
from .trips import make, trip, use

__all__ = ["ENGINE", "NEEDS", "carry"]

ENGINE = "Ray"
NEEDS = ("ray", "torch", "triton")


def carry(make_payload: str, installed: bool) -> dict[str, Any]:
    environment: dict[str, Any] = {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}
    if installed:
        environment = safepickle.engines.ray.runtime_env(**environment)
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=1, include_dashboard=False, object_store_memory=600 * 2**20, log_to_driver=False,
            _temp_dir=folder, _node_ip_address="127.0.0.1", runtime_env=environment,
        )  # fmt: skip
        try:
            ray.get(ray.remote(_import_torch).remote())  # a worker has started before the time is taken
            remote_use, remote_make = ray.remote(use), ray.remote(make)

            def there(payload: Any) -> str:
                return str(ray.get(remote_use.remote(payload)))

            def back(name: str) -> Any:
                return ray.get(remote_make.remote(name))

            return trip(make_payload, there, back, _size)
        finally:
            ray.shutdown()


def _import_torch() -> None:
    import torch  # noqa: F401


def _size(payload: Any) -> int:
    """What is put into the object store for the payload, but for a header."""
    buffers: list[Any] = []
    data = ray.cloudpickle.dumps(payload, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer))
    return len(data) + sum(memoryview(buffer).nbytes for buffer in buffers)
