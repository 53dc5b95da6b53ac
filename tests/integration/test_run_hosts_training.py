"""A training with `tfdist run --hosts` of which a host dies, with all its memory, equals that on one host."""

from pathlib import Path

import pytest

from tests.integration.agents import another_host
from tests.integration.conftest import QUIET, THREADS
from tests.integration.forks import OPTIMIZED, Forks
from tests.integration.test_run_recovers import CASES, resumable, run

STRATEGY = ("--strategy", "multi-worker", "--collectives", "native", "-n", "2")


@pytest.mark.readme("tfdist run --strategy multi-worker --hosts a,b train.py")
def test_the_chiefs_host_is_lost_twice_the_second_time_for_good_and_one_step_at_most_is_repeated(
    forking: Forks, tmp_path: Path, shared: Path
) -> None:
    optimized = {OPTIMIZED: "1"}  # as on the other host, where nothing is a fork of the tests
    run(forking, tmp_path, *STRATEGY, *resumable(tmp_path, "one host"), **optimized)
    hosts = ["--hosts", "one=127.0.0.1,two=127.0.0.2,three=127.0.0.3", "--ssh-command", f"'{another_host(shared)}'"]
    passed = [option for name in (*QUIET, *THREADS, "SHARED", "EVENTS") for option in ("--pass-env", name)]
    script = [str(CASES / "losing_hosts.py"), *resumable(tmp_path, "three hosts")[1:-1], "1000"]  # no backup
    variables = {"SHARED": str(shared), "EVENTS": str(tmp_path / "events"), **optimized}
    events = run(forking, tmp_path, *STRATEGY, *hosts, *passed, "--max-restarts", "2", *script, **variables)
    assert (tmp_path / "three hosts.json").read_text() == (tmp_path / "one host.json").read_text()
    failures = [event["text"] for event in events if event["event"] == "failed"]
    assert ["connection to host one" in text for text in failures] == [True, True]
    resumed = [event for event in events if event["event"] == "stepping"][1:]
    assert [event["source"] for event in resumed] == ["another host's memory"] * 2
    for event, least in zip(resumed, (2, 3), strict=True):  # it died before the third step, and before the fifth
        assert event["lost"] <= 1
        assert event["resumed"] >= least
