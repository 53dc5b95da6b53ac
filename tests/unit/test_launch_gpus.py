"""Workers on one host share its GPUs: each sees its own alone, and none is left without a word."""

from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import GROWTH, VISIBLE
from tfdist.jobs.plan.worker_spec import visible_gpus as visible


def test_workers_of_a_host_share_its_gpus_and_who_computes_nothing_has_none() -> None:
    config = LaunchConfig(target="t.py", workers=3, parameter_servers=1, gpus_per_worker=2)
    addresses = [(host, 4001 + number) for number, host in enumerate("aabab")]
    more = {"job_id": "j", "directory": Path("/d"), "python": "p", "agent_pid": 7}
    specs = plan(config, addresses=addresses, **more)  # type: ignore[arg-type]
    found = {str(spec.task): (spec.host, spec.gpus) for spec in specs}
    assert found == {
        "chief": ("a", ()),
        "worker 0": ("a", (0, 1)),
        "worker 1": ("b", (0, 1)),
        "worker 2": ("a", (2, 3)),
        "ps 0": ("b", ()),
    }
    assert plan(LaunchConfig(target="t.py"), addresses=addresses[:1], **more)[0].gpus is None  # type: ignore[arg-type]


def test_workers_that_see_the_same_gpus_take_memory_as_they_need_it() -> None:
    more = {"job_id": "j", "directory": Path("/d"), "python": "p", "agent_pid": 7}

    def growth(hosts: str, **options: Any) -> list[str | None]:
        config = LaunchConfig(target="t.py", workers=len(hosts), **options)
        specs = plan(config, addresses=[(host, 4001) for host in hosts], **more)  # type: ignore[arg-type]
        return [spec.environ({}).get(GROWTH) for spec in specs]

    assert growth("aab") == ["true", "true", None]
    assert growth("aab", gpus_per_worker=1) == [None] * 3
    assert growth("aa", environment={GROWTH: "false"}) == ["false"] * 2
    (first, _) = plan(LaunchConfig(target="t.py", workers=2), addresses=[("a", 1), ("a", 2)], **more)  # type: ignore[arg-type]
    assert first.environ({GROWTH: "false"})[GROWTH] == "false", "what the host says comes first"


@pytest.mark.parametrize(
    ("given", "places", "seen"),
    [("GPU-a,GPU-b", (1,), "GPU-b"), (" 3 , 1", (0, 1), "3,1"), ("0,-1,2", (0,), "0"), ("0", (), ""), ("-1", (), "")],
)
def test_those_of_the_host_are_those_that_it_names(given: str, places: tuple[int, ...], seen: str) -> None:
    assert visible(places, {VISIBLE: given}) == seen


@pytest.mark.parametrize("given", ["", "-1", "0,1", "0,-1,2,3"])
def test_too_few(given: str) -> None:
    with refused(ConfigError, name=VISIBLE, received=given, mentions=["--gpus-per-worker"]):
        visible((1, 2), {VISIBLE: given})


def test_those_of_the_driver_count_where_none_are_named(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible((1,), {}, driver=str(tmp_path)) == "1"
    for driver, count in ((tmp_path, 2), (tmp_path / "none", 0)):
        with refused(ConfigError, path=driver, received=count):
            visible((2,), {}, driver=str(driver))
