"""`tfdist run --engine ray` where Ray's autoscaler starts and ends nodes: raylets on this machine.

`tests/soak/ray.py autoscaled` trains there.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.agents import DEADLINE_SECONDS, says, wait_until
from tests.integration.steppers import done, happened, job, wait_for_event
from tests.integration.test_run_resize import FOREVER, resize, sizes
from tests.ray_nodes import added_nodes, ray_nodes

pytest.importorskip("ray")
pytestmark = pytest.mark.release

KILLED = """
import psutil

def before(tick):
    if (START, tick, ADDRESSES[ME][0]) == (0, 5, "127.0.0.2"):
        [raylet] = [one for one in psutil.Process().parents() if one.name() == "raylet"]
        raylet.kill()
        time.sleep(1000)

tell(f"address {START} {ME}", ADDRESSES[ME][0])
"""


def test_nodes_come_when_a_job_needs_them_and_go_after_it(script: Any, shared: Path) -> None:
    def on(start: int) -> set[str]:
        return {file.read_text() for file in shared.glob(f"address {start} *")}

    path = script(
        FOREVER.replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"').replace(
            "train(math.inf)", f"{KILLED}train(math.inf, before)"
        )
    )
    options = ("-n", 2, "--max-workers", 4, "--max-restarts", 1, "--wait-seconds", 300, "--pass-env", "SHARED")
    with ray_nodes(1, more=3) as address:
        with job("--engine", "ray", "--ray-address", address, *options, path, shared=shared) as process:
            wait_for_event(shared, "stepping", start=1)  # the node of the first start has been killed
            code, _, err = resize(
                shared, 4
            )  # the head's place, one that was lost, and at most two more have been there
            assert code == 0, err
            (shared / "enough").write_text("x")
            _, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, err
        wait_until(lambda: not added_nodes(address), "nodes that nobody needs are left")
    assert sizes(shared) == [2, 2, 4]
    assert on(0) == {address.partition(":")[0], "127.0.0.2"}
    assert [len(on(start)) for start in (1, 2)] == [2, 4]
    assert "127.0.0.2" not in on(1) | on(2)
    steps = done(shared)
    assert steps == list(range(len(steps)))
    [failure] = [one for one in happened(shared) if one["event"] == "failed"]
    assert says(failure["text"], "HostLostError: ", "host 127.0.0.2")
