"""`tfdist run --evict-stragglers`: a worker that is slow by a script of faults is replaced once, and then left out."""

from tests.integration.agents import DEADLINE_SECONDS, another_host
from tests.integration.forks import Forks
from tests.integration.steppers import done, fault, happened, job, wait_for_event
from tests.integration.test_run_resize import FOREVER
from tests.integration.test_run_standby import LOADED
from tfdist.jobs.supervision.evicting import Measure

# the others wait for a worker between the step's work and its end, which the clock is told
MEETS = FOREVER.replace("        enough = meet", "        with clock.during(Phase.AGREE):\n            enough = meet")
SCRIPT = "from tfdist.monitor.phases import Phase\n" + MEETS.replace("\ntrain(", "\nreporter.stand_by()\ntrain(")
SLOW_SECONDS = 0.2  # longer than a step without it, on a busy machine too
# a worker that is slow without a fault, since those of other hosts are told none, and keeps nothing in memory
HOSTS = LOADED + SCRIPT.replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"').replace(
    "        inside(tick)\n", f"        inside(tick)\n        time.sleep({SLOW_SECONDS} * (ME == 1 and tick > 3))\n"
)


def test_a_slow_worker_is_replaced_once_and_then_left_out(forking: Forks, script, shared) -> None:  # type: ignore[no-untyped-def]
    slow = [fault("slow", 1, 3, restart, seconds=SLOW_SECONDS) for restart in (0, 1)]
    options = ["-n", 3, "--min-workers", 2, "--max-restarts", 1, "--hang-seconds", 100]
    options += ["--standby", "--evict-stragglers", "--evict-seconds", 0.5]
    with job(*options, script(SCRIPT), shared=shared, faults=slow, forking=forking) as process:
        wait_for_event(shared, "stepping", start=2)
        (shared / "enough").write_text("x")
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    assert done(shared) == list(range(len(done(shared)))), "no step is lost or repeated"
    told = [one for one in happened(shared) if one["event"] == "straggler"]
    assert [(one["worker"], one["measure"]) for one in told] == [(1, Measure.REPLACED), (1, Measure.LEFT_OUT)]
    for one in told:
        assert one["seconds"] > max(SLOW_SECONDS, one["median_seconds"])
        assert one["part"] == "python"
    stepping = [(one["start"], one["workers"]) for one in happened(shared) if one["event"] == "stepping"]
    assert stepping == [(0, 3), (1, 3), (2, 2)]
    halted = [(one["purpose"], one["workers"]) for one in happened(shared) if one["event"] == "halted"]
    assert halted == [("evict", 3), ("evict", 2)]
    assert not [one for one in happened(shared) if one["event"] == "failed"]
    assert b"after 0 of 1 restarts; 2 slow workers evicted" in errors
    assert b"a standby takes its place" in errors


def test_on_two_hosts_it_is_replaced_and_not_left_out(script, shared) -> None:  # type: ignore[no-untyped-def]
    options = ["--hosts", "one=127.0.0.1,two=127.0.0.2", "--ssh-command", f"'{another_host(shared)}'"]
    options += ["--min-workers", 1, "--max-restarts", 1, "--hang-seconds", 100]
    options += ["--standby", "--evict-stragglers", "--evict-seconds", 0.5]
    with job(*options, script(HOSTS), shared=shared) as process:
        wait_for_event(shared, "straggler", measure=Measure.KEPT)
        (shared / "enough").write_text("x")
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    assert done(shared) == list(range(len(done(shared)))), "no step is lost or repeated"
    told = [one for one in happened(shared) if one["event"] == "straggler"]
    assert [(one["worker"], one["measure"]) for one in told] == [(1, Measure.REPLACED), (1, Measure.KEPT)]
    assert "standby before" in told[1]["text"]
    stepping = [(one["start"], one["workers"]) for one in happened(shared) if one["event"] == "stepping"]
    assert stepping == [(0, 2), (1, 2)]
