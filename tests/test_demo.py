"""The main job: the demo's own verdict about safepickle, and about the others what is known of them."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.timeout(600)
def test_the_demo_shows_that_the_copy_and_the_restored_model_compute_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "safepickle", "demo", "--json"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert set(results["safepickle"].values()) == {"same numbers"}
    for other in ("pickle", "cloudpickle"):
        assert "same numbers" not in results[other].values()
