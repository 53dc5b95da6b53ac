"""`python -m benchmarks` with real workers: what is checked, columns and files; never how fast anything was."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.jobs import recovery_jobs
from benchmarks.shares.shares_race import ALIKE, UNLIKE
from tests.integration.forks import Forks, Jobs

pytestmark = pytest.mark.release


def measured(forking: Forks, *arguments: str) -> str:
    """Run a benchmark to its end, its workers in forks; return what it printed."""
    with pytest.MonkeyPatch.context() as patch, forking.for_pools():
        for variable in forking.environment.items():
            patch.setenv(*variable)
        ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 0, f"{ended.output[-4000:]}\n{ended.exception!r}"
    return ended.stdout


def test_what_recording_adds_is_measured_part_by_part(forking: Forks, tmp_path: Path) -> None:
    out = measured(
        forking,
        *("monitor", "--model", "small", "--batch-size", "8", "--warm-up-steps", "1", "--steps", "2", "--rounds", "2"),
        *("--json", str(tmp_path / "report.json")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["seconds"]) == ["nothing", "observers", "stamps", "everything"]
    for arm, seconds in report["seconds"].items():
        assert min(seconds) > 0
        assert arm in out
    assert report["flushing"]["nothing"] == [0.0, 0.0]
    assert min(report["flushing"]["everything"]) > 0  # an epoch has ended in each turn


def test_predicted_steps_are_measured_by_every_plan(forking: Forks, tmp_path: Path) -> None:
    out = measured(
        forking,
        *("plan", "--model", "convolutions", "--microbatches", "2", "--steps", "1", "--rounds", "1", "--seconds", "0"),
        *("--json", str(tmp_path / "report.json")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    rows = report["rows"]["convolutions"]
    assert list(rows) == ["one device", "data 2", "pipeline 2"]
    for plan, row in rows.items():
        assert (len(row["predicted"]), len(row["measured"])) == (1, 1)
        assert min(*row["predicted"], *row["measured"]) > 0
        ratios = [guess / took for guess, took in zip(row["predicted"], row["measured"], strict=True)]
        assert report["predicted_over_measured"]["convolutions"][plan]["median"] == pytest.approx(ratios[0])
        assert plan in out
    assert [len(row["stages"] or ()) for row in rows.values()] == [0, 0, 1]
    chosen = report["chosen"]["convolutions"]
    assert rows[chosen]["predicted"][0] == min(row["predicted"][0] for row in rows.values())
    assert report["regret"]["convolutions"]["median"] > 0
    assert min(report["link"]["latency_seconds"], report["link"]["bytes_per_second"]) > 0


def test_slow_workers_and_a_table_on_parameter_servers_are_measured(forking: Forks, tmp_path: Path) -> None:
    out = measured(
        forking,
        *("parameter-server", "--workers", "2", "--rows", "20000", "--rounds", "2", "--steps", "2"),
        *("--batch-size", "32", "--json", str(tmp_path / "report.json"), "--plot", str(tmp_path / "plot.png")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    (two,) = report["crowds"]
    assert two["slow_down"] > 0
    assert two["examples"] == 2 * 2 * 32
    # every update of both rounds was counted, none was staler than its mode allows, and none was one of warming up
    bounds = {"synchronous": 0, "bounded": two["workers"] + 1, "asynchronous": math.inf}
    for mode, counts in two["staleness"].items():
        assert sum(counts.values()) == 2 * two["updates"][mode]
        assert max(map(int, counts)) <= bounds[mode]
        assert mode in out
    assert two["updates"] == {"synchronous": 2, "bounded": 4, "asynchronous": 4}
    table = report["table"]
    half = 20_000 * 16 * 4 // 2
    assert [[server["placed"] for server in servers] for servers in table["memory"].values()] == [
        [0, 0],
        [half, half],
        [half, half],
    ]
    assert all(server["resident"] > half for servers in table["memory"].values() for server in servers)
    assert [len(arm["seconds"]) for arm in table["arms"]] == [2] * 6
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_job_recovers_beside_horovod_elastic_with_the_same_state(
    forking: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ours(Jobs):
        """Starts our job in a fork; Horovod's starts its workers itself."""

        def Popen(self, command: list[str], **options: Any) -> Any:  # noqa: N802
            return (super().Popen if "tfdist" in command else subprocess.Popen)(command, **options)

    monkeypatch.setattr(recovery_jobs, "subprocess", Ours(forking.server))
    out = measured(
        forking,
        *("recovery", "--strategy", "ring", "--megabytes", "1", "--kills", "1", "--first", "6", "--every", "4"),
        *("--rounds", "1", "--json", str(tmp_path / "report.json")),
    )
    peer, ring = json.loads((tmp_path / "report.json").read_text())["ways"]
    assert [(way["name"], way["why_not"]) for way in (peer, ring)] == [("horovod elastic", ""), ("ring", "")]
    for way, workers in ((peer, 1), (ring, 2)):
        (job,) = way["jobs"]
        assert job["workers"] == workers  # Horovod's goes on alone
        assert 0 < job["noticed"][0] < job["recovered"][0]
        assert 0 <= job["repeated"][0] <= 6
        assert job["variables"] == 16 + 2 * 16 + 2  # weights, slots, iterations and the learning rate
        assert 1e6 < job["bytes"] < 1.1e6
        assert way["name"] in out


def test_a_transformer_in_parts_is_measured_beside_one_process_and_dtensor(forking: Forks, tmp_path: Path) -> None:
    shape = ("--blocks", "1", "--width", "8", "--heads", "2", "--length", "4", "--words", "8", "--batch-size", "2")
    out = measured(
        forking, "model-parallel", *shape, "--steps", "1", "--rounds", "1", "--json", str(tmp_path / "report.json")
    )
    report = json.loads((tmp_path / "report.json").read_text())
    (one,), (two,) = report["seconds"]["one process"], report["seconds"]["two processes"]
    assert report["efficiency"]["transformer"]["median"] == pytest.approx(one / 2 / two)
    assert len(report["sum_seconds"]) == 1
    assert report["speed_over_dtensor"]["median"] > 0
    assert "7 and 2 sums of 0.00 MB" in " ".join(out.split())


def test_a_pipeline_is_measured_beside_its_ideal(forking: Forks, tmp_path: Path) -> None:
    shape = ("--blocks", "2", "--width", "8", "--heads", "2", "--length", "4", "--words", "8", "--batch-size", "4")
    some = ("--microbatches", "2", "--steps", "1", "--rounds", "1")
    measured(forking, "pipeline", *shape, *some, "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    (alone,), (gpipe,) = report["seconds"]["one process"], report["seconds"]["gpipe"]
    assert report["of_ideal"]["gpipe"]["median"] == pytest.approx(alone / 2 / (1 - 1 / 3) / gpipe)
    assert [len(each) for each in report["grown_bytes"].values()] == [1, 2, 1, 2, 2, 2]


def test_memory_of_shards_is_measured_beside_plain_data_parallelism(forking: Forks, tmp_path: Path) -> None:
    small = ("--units", "8", "--layers", "2", "--batch-size", "4", "--steps", "1", "--rounds", "1")
    measured(forking, "sharded", *small, "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["parameters"] == 2 * (8 * 8 + 8)
    plain = report["slots_bytes"]["plain"]
    assert all(sum(report["slots_bytes"][f"stage {stage}"]) < sum(plain) for stage in (1, 2, 3))
    assert {arm: len(each) for arm, each in report["peak_bytes"].items()} == dict.fromkeys(report["seconds"], 2)
    assert report["time_over_plain"]["plain"]["median"] == 1.0


def test_shares_are_measured_beside_equal_and_ideal_ones(forking: Forks, tmp_path: Path) -> None:
    out = measured(
        forking,
        *("shares", "--batch-size", "32", "--steps", "2", "--settle", "1", "--every", "1", "--rounds", "2"),
        *("--rounds-alike", "2", "--json", str(tmp_path / "report.json")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    for part, arms in {"alike": ALIKE, "unlike": UNLIKE}.items():
        assert list(report[part]) == list(arms)
        for arm, trainings in report[part].items():
            assert [one["seconds"] > 0 for one in trainings] == [True] * 2
            assert all((one["callback"] > 0) == (arm == "balanced") for one in trainings)
            assert arm in out
    assert [one["shares"] for one in report["unlike"]["ideal"]] == [[4, 1]] * 2
