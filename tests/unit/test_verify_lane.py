"""The processes of a column, without any: how long they may take."""

from pathlib import Path

import pytest

from tfdist.jobs.placement import worker_environment
from tfdist.testing.pool import Reply
from tfdist.verify import feature, runner


@pytest.mark.parametrize(("given", "wanted"), [(None, 120.0), (5.0, 120.0), (600.0, 600.0)])
def test_processes_may_take_two_minutes_to_start_or_as_long_as_a_cell(
    given: float | None, wanted: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that does other work is given time by one option, not by two."""
    asked: list[float] = []

    class Silent:
        running = False

        def __init__(self, environments: object, start: object) -> None: ...

        def call(self, function: str, *_: object, timeout_seconds: float) -> tuple[Reply, ...]:
            asked.append(timeout_seconds)
            return (Reply(worker=0, status="silent", message="no answer"),)

    monkeypatch.setattr(worker_environment, "WorkerPool", Silent)
    made = runner.FeatureSession(tmp_path, column=None, deadline_seconds=given)
    found = made.outcomes(feature.features()["even"], workers=1, replicas=1)
    assert isinstance(found, runner.Verdict)
    assert found.status == "hang"
    assert asked == [wanted]
