"""`tfdist plan`: rows and the choice among them, what is refused, the record, and what a monitored run adds to it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.refusals import refused
from tests.unit.test_plan_steps import network_of, profile_of
from tfdist.cli.main import main
from tfdist.errors import ConfigError
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import EventFile
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.layer_profile import Profile
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling import plan_record
from tfdist.planner.scaling.device_table import DEVICES, LINKS, device_of, link_of
from tfdist.planner.scaling.job_cost import Price
from tfdist.planner.scaling.job_steps import METHODS, Surroundings
from tfdist.planner.scaling.plan_record import Calibration, Pair, Record
from tfdist.planner.scaling.scaling_report import Request, ScalingReport, numbers_of, plan_scaling
from tfdist.waiting import Flag

HOUR = 3600.0
CALIBRATION = Calibration(
    link=Link(latency_seconds=1e-4, bytes_per_second=1e9, is_local=True),
    flops=1e11,
    memory_bytes_per_second=1e10,
    disk_bytes_per_second=1e9,
    noise=0.02,
    step_seconds=1e-4,
    codec_seconds=1e-4,
    codec_seconds_per_byte=1e-9,
    machine={"processor": "p", "cores": "2", "link": "two processes of this host", "time": "now"},
)


def measured_here(**more: Any) -> Profile:
    """A step of 64 examples takes 0.3 s of computing; 40 MB of weights."""
    return profile_of(0.1, 0.2, [10**7] * 4, fixed=0.001, **more)


def report_of(**asked: Any) -> ScalingReport:
    around = Surroundings(**{"network": network_of(1e10), **asked.pop("around", {})})
    return plan_scaling(Request(**{"profile": measured_here(), "workers": numbers_of("1..16"), **asked}, around=around))


def test_the_smallest_set_up_that_meets_the_deadline() -> None:
    """6.4 million examples take 100,000 steps of 0.301 s: 8.4 hours on one device."""
    given = {"examples": 6_400_000, "prices": (Price(hourly=2.0),)}
    assert report_of(deadline_seconds=9 * HOUR, **given).best.job.workers == 1  # type: ignore[union-attr]
    found = report_of(deadline_seconds=4 * HOUR, **given)
    assert found.best is not None
    assert found.best.job.workers == 4
    assert found.best.cost.seconds <= 4 * HOUR < next(one.cost.seconds for one in found.rows if one.job.workers == 2)
    none = report_of(deadline_seconds=0.1 * HOUR, **given)
    assert none.best is None
    assert "0.1" not in none.verdict()


def test_a_budget_alone_gives_the_fastest_within_it() -> None:
    found = report_of(examples=6_400_000, prices=(Price(hourly=2.0),), budget=18.0)
    assert found.best is not None
    prices = {one.job.workers: one.cost.price for one in found.rows}
    assert found.best.job.workers == max(workers for workers, price in prices.items() if price <= 18.0)
    assert prices[1] == pytest.approx(2 * 8.36, rel=0.01)


def test_a_slow_network_leaves_one_device() -> None:
    found = report_of(around={"network": network_of(1e5, 0.1)})
    assert found.best is not None
    assert found.best.name == "one device"
    assert found.best.command == "python train.py"


def test_spot_is_a_row_of_its_own() -> None:
    prices = Price(hourly=2.0), Price.spot("0.4:mtbf=6h", hourly=2.0)
    found = report_of(examples=6_400_000, prices=prices, save_seconds=5.0)
    pairs = {(one.job.workers, one.is_spot): one for one in found.rows}
    assert len(pairs) == 2 * len(found.request.workers)
    for workers in (1, 16):
        spot, demand = pairs[workers, True], pairs[workers, False]
        assert spot.cost.seconds > demand.cost.seconds
        assert spot.cost.price < demand.cost.price
        assert demand.cost.interval_seconds is None
    assert pairs[16, True].cost.interval_seconds < pairs[1, True].cost.interval_seconds  # type: ignore[operator]


def test_a_batch_that_grows_needs_more_examples() -> None:
    """At 64 examples and a scale of 1,024, sixteen workers with 1,024 need 2 / (1 + 1 / 16) as many."""
    plain, scaled = (report_of(grows=True, noise_scale=scale).rows[-1] for scale in (None, 1024.0))
    assert plain.job.examples == 1024
    assert scaled.cost.seconds / plain.cost.seconds == pytest.approx(2 / (1 + 1 / 16))
    assert scaled.efficiency == plain.efficiency > 0.9


def test_workers_without_an_example_are_left_out() -> None:
    found = report_of(workers=(32, 64, 128))
    assert found.left_out == (128,)
    assert json.loads(found.to_json())["left_out"] == [128]


def test_a_model_that_does_not_fit_is_no_answer() -> None:
    found = report_of(around={"device": DeviceKind(memory_bytes=1e6)})
    assert found.best is None
    assert not any(one.fits for one in found.rows)


@pytest.mark.parametrize("method", METHODS[1:])
def test_each_method_has_a_command(method: str) -> None:
    (row,) = report_of(workers=(4,), methods=(method,)).rows
    assert row.job.method == method
    assert "-n 4" in row.command
    assert "train.py" in row.command
    words = {
        "sharded": "--strategy sharded-data-parallel",
        "local-sgd": "--synchronization local-sgd:every=2",
        "parameter-server": "--parameter-servers 1",
        "powersgd": "PowerSGD(rank=2)",
        "pipeline": "--strategy pipeline",
    }
    assert words.get(method, "--strategy multi-worker") in row.command


@pytest.mark.parametrize("text", ["", "0", "8..2", "a", "1..2..3", "1,,2", "99999999"])
def test_numbers_that_make_no_sense(text: str) -> None:
    with refused(ConfigError, name="--workers"):
        numbers_of(text)


@pytest.mark.parametrize("text", ["", "fast", "10gbit:late", "10gbit:-1", "nvlink9"])
def test_links_that_are_none(text: str) -> None:
    with refused(ConfigError, name="link", received=text):
        link_of(text)


def test_devices_and_links_have_sources() -> None:
    assert all(one.source and one.mixed >= one.float32 > 0 for one in DEVICES.values())
    assert all(one.source and link_of(name).bytes_per_second > 0 for name, one in LINKS.items())
    speeds = [device_of(name, here=1e11).speed for name in ("p100", "a100", "h100")]
    assert speeds == sorted(speeds)
    with refused(ConfigError, name="device", mentions=("tfdist plan calibrate",)):
        device_of("h100", here=None)
    with refused(ConfigError, name="device", mentions=("h100",)):
        device_of("h10", here=1.0)


def pairs_of(ratios: list[float]) -> tuple[Pair, ...]:
    return tuple(Pair(key=str(place), predicted=1.0, measured=one) for place, one in enumerate(ratios))


def test_intervals_come_from_the_record() -> None:
    assert Record(pairs=pairs_of([1.0] * 4)).factors() == (0.8, 1.2)
    assert Record(pairs=pairs_of([1.3, 0.9, 1.0, 1.1, 1.2])).factors() == (0.9, 1.3)
    many = Record(pairs=pairs_of([1 + place / 100 for place in range(99)])).factors()
    assert many == pytest.approx((1.09, 1.89))  # 80 of a hundred gaps lie between the tenth from both ends


def test_the_record_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan" / "record.json"
    assert plan_record.read(path) == Record()
    plan_record.change(path, lambda found: found.calibrated(CALIBRATION).expecting({"a": 1.0, "b": 2.0}))
    found = plan_record.change(path, lambda one: one.measured("a", 1.5, "now").measured("unknown", 1.0, "now"))
    assert plan_record.read(path) == found
    assert found.calibration == CALIBRATION
    assert found.pairs == (Pair(key="a", predicted=1.0, measured=1.5, time="now"),)
    path.write_text("{")
    with refused(ConfigError, path=path):
        plan_record.read(path)
    path.write_text('{"kind": "record of planning", "version": 99}')
    assert plan_record.read(path) == Record()


def test_a_monitored_run_adds_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "cache" / "plan" / "record.json"
    said: list[str] = []
    monitoring = Monitoring(tmp_path, EventFile(None, "job", copy=None), said.append, Flag())
    monitoring._step_seconds = 0.5
    key = plan_record.key_of("multi-worker", 2, ["train.py", "--epochs", "3"])
    monitoring.compare(None, 2, ["train.py", "--epochs", "3"])
    assert not path.exists()
    plan_record.change(path, lambda found: found.expecting({key: 0.4}))
    monitoring.compare(None, 2, ["train.py"])
    assert not said
    monitoring.compare(None, 2, ["train.py", "--epochs", "3"])
    assert [(one.predicted, one.measured) for one in plan_record.read(path).pairs] == [(0.4, 0.5)]
    assert "500 ms" in said[0]
    path.write_text("[]")
    monitoring.compare(None, 2, ["train.py", "--epochs", "3"])
    assert "warning" in said[1]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "profile.json"
    path.write_text(measured_here().to_json())
    return str(path)


def plan(*words: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, words)])


def test_the_command_shows_and_writes_the_rows(profile: str, tmp_path: Path) -> None:
    picture, report = tmp_path / "p.png", tmp_path / "r.json"
    given = ["--profile", profile, "--link", "100gbit:0.01", "--workers", "1..8", "--price", 2]
    done = plan(*given, "--spot", "0.5:mtbf=4h", "--plot", picture, "--json", report, "train.py", "--fast")
    assert done.exit_code == 0, done.output
    assert "8 x data, spot" in done.output
    assert "20%" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(report.read_text())
    best = content["rows"][content["best"]]
    assert best["command"] == "tfdist run --strategy multi-worker -n 8 train.py --fast"
    assert best["step_seconds"] == pytest.approx(sum(best["terms"].values()))
    assert best["command"] in done.output.replace("\n", "")


def test_limits_that_nothing_meets_are_exit_code_1(profile: str) -> None:
    given = ["--profile", profile, "--link", "10gbit", "--price", 1, "--examples", "1e9", "--deadline", "1m"]
    done = plan(*given)
    assert done.exit_code == 1
    assert "Nothing meets" in done.output


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--deadline", "1h"], "--examples"),
        (["--budget", "5", "--examples", "10"], "--price"),
        (["--spot", "0.5:mtbf=4h"], "--price"),
        (["--examples", "1.5"], "1.5"),
        (["--examples", "nan"], "nan"),
        (["--examples", "inf"], "inf"),
        (["--epochs", "inf"], "inf"),
        (["--noise", "nan"], "nan"),
        (["--save", "nan"], "nan"),
        (["--save", "inf", "--price", "1", "--spot", "0.5:mtbf=4h"], "inf"),
        (["--method", "local"], "local-sgd"),
        (["--workers", "128"], "--grow"),
        (["--hosts", "8"], "--hosts"),
        (["--workers", "x"], "--workers"),
        (["--link", "fast"], "fast"),
        (["--device", "h10"], "h100"),
        (["--deadline", "soon", "--examples", "10"], "soon"),
    ],
)
def test_requests_that_make_no_sense(profile: str, words: list[str], fact: str) -> None:
    done = plan("--profile", profile, "--link", "10gbit", *words)
    assert done.exit_code == 2, done.output
    assert fact in done.output


def test_without_a_script_or_a_profile_there_is_nothing_to_plan() -> None:
    for words in (["--link", "10gbit"], ["nowhere.py"], ["simulate"], ["simulate", "nowhere.py"]):
        assert plan(*words).exit_code == 2


def test_a_host_plans_for_its_own_processors(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_record.change(tmp_path / "cache" / "plan" / "record.json", lambda found: found.calibrated(CALIBRATION))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    done = plan("--profile", profile, "--workers", "1..8", "--json", "-")
    assert [row["workers"] for row in json.loads(done.stdout)["rows"]] == [1, 2]
    assert json.loads(done.stdout)["noise"] == 0.02
    done = plan("--profile", profile, "--workers", "4..8")
    assert done.exit_code == 2
    assert "--link" in done.output
    shown = plan("calibrate", "--show")
    assert shown.exit_code == 0
    assert "100.0 Gflop/s" in shown.output


def test_a_device_is_compared_with_this_machine(profile: str, tmp_path: Path) -> None:
    plan_record.change(tmp_path / "cache" / "plan" / "record.json", lambda found: found.calibrated(CALIBRATION))
    given = ["--profile", profile, "--link", "ndr", "--workers", 1, "--json", "-"]
    slow, fast = (json.loads(plan(*given, "--device", name).stdout) for name in ("here", "h100"))
    speed = 0.35 * 494.5e12 / 1e11
    assert fast["device"]["speed"] == pytest.approx(speed)
    steps = [one["rows"][0]["step_seconds"] - 0.001 for one in (slow, fast)]
    assert steps[0] / steps[1] == pytest.approx(speed)


def test_nothing_calibrated_is_told(profile: str) -> None:
    done = plan("calibrate", "--show")
    assert done.exit_code == 1
    assert "tfdist plan calibrate" in done.output


def test_simulate_plays_a_job_through(profile: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    given = ["simulate", "--profile", profile, "--link", "10gbit", "--workers", 4, "--steps", 50]
    done = plan(*given, "--slow", "3=4", "--noise", 0, "--json", "-", "--trace", trace)
    found = json.loads(done.stdout)
    predicted = found["predicted_step_seconds"]
    assert predicted * 2 < found["step_seconds"]["0.5"] < predicted * 4
    assert found["is_finished"]
    assert json.loads(trace.read_text())["traceEvents"]
    failing = plan(*given, "--mtbf", "1m", "--restart", "5s", "--min-workers", 2, "--save", 1)
    assert failing.exit_code == 0, failing.output
    assert "failures" in failing.output
    for words in (["--slow", "9=2"], ["--slow", "x"], ["--mtbf", "soon"]):
        assert plan(*given, *words).exit_code == 2


def test_nothing_is_infinite_in_the_report() -> None:
    hopeless = Price.spot("0.5:mtbf=1s", hourly=1.0)
    found = report_of(prices=(hopeless,))
    assert found.best is None
    assert found.rows[0].cost.seconds == math.inf
    content = json.loads(found.to_json(), parse_constant=lambda text: pytest.fail(text))
    assert content["rows"][0]["training_seconds"] is None
