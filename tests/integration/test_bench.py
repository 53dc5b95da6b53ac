"""The benchmarks with real workers: what they check, their columns and files; never how fast anything was."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integration.forks import Forks
from tfdist.bench.all_reduce import reduced_message
from tfdist.cli.main import main
from tfdist.testing.pool import WorkerPool, worker_environments

CASES = Path(__file__).parent / "cases"
ENGINES = ["tensorflow", "multi-worker", "horovod", "ring", "native", "open-mpi", "tcp", "bare", "memcpy"]


def bench(forking: Forks, *arguments: str) -> str:
    """Run a benchmark to its end, its workers in forks; return what it printed."""
    with pytest.MonkeyPatch.context() as patch, forking.for_pools():
        for variable in forking.environment.items():
            patch.setenv(*variable)
        ended = CliRunner().invoke(main, ["bench", *arguments])
    assert ended.exit_code == 0, f"{ended.output[-4000:]}\n{ended.exception!r}"
    return ended.stdout


def test_all_reduce_measures_every_engine_and_finds_every_sum_right(forking: Forks, tmp_path: Path) -> None:
    out = bench(
        forking,
        *("all-reduce", "--min-bytes", "64K", "--max-bytes", "64K", "--gradients", "convolutional"),
        *("--rounds", "2", "--json", str(tmp_path / "report.json")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    rows = [line.split() for line in out.splitlines() if " float " in line]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        (size, count, engine) for size, count in (("64K", "16384"), ("convolutional", "93962")) for engine in ENGINES
    ]
    assert "8 tensors, 0.4 MB" in out
    assert report["left_out"] == {}
    for result in report["results"]:
        assert result["wrong"] == 0, result
        seconds = report["rows"][[row["name"] for row in report["rows"]].index(result["name"])]["seconds"]
        assert len(seconds[result["engine"]]) == 2
        expected = sorted(reduced_message.bus_bandwidth(result["bytes"], each, 2) for each in seconds[result["engine"]])
        assert expected[0] <= result["bus_bandwidth"]["median"] <= expected[1]


def test_the_bare_loop_adds_up_right_among_three_workers_and_in_any_length(forking: Forks) -> None:
    sizes = ("--min-bytes", "4", "--max-bytes", "1M", "--factor", "511")  # 1, 511 and 261121 numbers
    out = bench(
        forking,
        *("all-reduce", "--engine", "bare", "--workers", "3", *sizes, "--gradients", "none", "--rounds", "1"),
        *("--json", "-"),
    )
    results = json.loads(out)["results"]
    assert [(result["bytes"], result["wrong"]) for result in results] == [(4, 0), (2044, 0), (1044484, 0)]


def test_a_step_on_the_ring_is_measured_beside_both_peers(forking: Forks, tmp_path: Path) -> None:
    out = bench(
        forking,
        *("step", "--strategy", "ring", "--model", "convolutional", "--batch-size", "8"),
        *("--steps", "2", "--rounds", "1", "--json", str(tmp_path / "report.json")),
    )
    (report,) = json.loads((tmp_path / "report.json").read_text())
    assert list(report["seconds"]) == ["tensorflow loop", "horovod loop", "tfdist loop", "tfdist fit"]
    for arm, (seconds,) in report["seconds"].items():
        assert report["examples_per_second"][arm] == {"mean": pytest.approx(8 / seconds), "deviation": 0.0}
        assert f"{arm}, examples per second" in out
    for peer in ("tensorflow loop", "horovod loop"):
        assert report["speed"][peer]["median"] * report["seconds"]["tfdist fit"][0] == pytest.approx(
            report["seconds"][peer][0]
        )
        assert f"against the {peer}" in out


def test_codecs_are_measured_beside_none_and_the_peer(forking: Forks, tmp_path: Path) -> None:
    out = bench(
        forking,
        *("codecs", "--model", "small", "--codec", "powersgd:rank=4", "--codec", "qsgd-8", "--codec", "auto"),
        *("--batch-size", "8", "--steps", "2", "--rounds", "2", "--json", str(tmp_path / "report.json")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ["noop", "horovod", "none", "powersgd:rank=4", "qsgd-8", "auto"]
    assert report["regrets"]["auto"]["best"] in ("none", "powersgd:rank=4", "qsgd-8")
    assert report["regrets"]["auto"]["median"] > 0
    whole = 4 * (32 * 128 + 128 + 128 * 10 + 10)  # of two members each sends as much as it has
    biases = 4 * (128 + 10)
    assert rows["noop"]["wire_bytes"] is None
    assert rows["horovod"]["wire_bytes"] == rows["none"]["wire_bytes"] == whole
    assert rows["powersgd:rank=4"]["wire_bytes"] == biases + 4 * 4 * (32 + 128 + 128 + 10)
    assert whole / 4 < rows["qsgd-8"]["wire_bytes"] < whole / 3
    assert rows["none"]["error"] == 0.0
    assert 0.0 < rows["qsgd-8"]["error"] < 0.2 < rows["powersgd:rank=4"]["error"] < 1.0
    for row in rows.values():
        assert len(row["seconds"]) == 2
        assert min(row["seconds"]) > 0
        assert row["sent_bytes"] == []  # there is no link
        assert row["name"] in out
    assert all(sum(pair) > 0 for name in ("powersgd:rank=4", "qsgd-8") for pair in rows[name]["computing"])


@pytest.mark.release
def test_codecs_are_trained_to_an_accuracy_on_the_same_batches_as_the_peer(forking: Forks, tmp_path: Path) -> None:
    out = bench(
        forking,
        *("codecs", "--train", "--codec", "float16", "--steps", "10", "--target", "0.2"),
        *("--json", str(tmp_path / "report.json"), "--plot", str(tmp_path / "plot.png")),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    curves = {name: curve for name, (curve,) in report["curves"].items()}
    assert list(curves) == ["horovod", "none", "float16"]
    assert report["examples"] == 1257
    for name, curve in curves.items():
        assert 0 < curve["seconds"][0] < curve["seconds"][1]
        # the same weights and batches everywhere: an image or two may fall to another side by rounding
        assert curve["accuracy"] == pytest.approx(curves["horovod"]["accuracy"], abs=0.01)
        assert curve["accuracy"][-1] > 0.2
        assert name in out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_elements_are_counted(forking: Forks) -> None:
    # one of two workers by itself, whose engines do not talk
    def environments() -> list[dict[str, str]]:
        first, _ = worker_environments(forking.environment, strategy=None, ports=[41000, 41001], replicas_per_worker=1)
        return [{**first, "PYTHONPATH": str(CASES)}]

    with WorkerPool(environments, start=forking.worker) as pool:
        for case in ("wrong_elements_without_a_sum", "wrong_elements_of_a_sum_out_of_place"):
            (reply,) = pool.call(f"bench_cases:{case}", {"elements": [1000, 24]}, timeout_seconds=100)
            assert reply.status == "returned", reply.detail
            # all of them, but for those that happen to be equal
            assert 1000 <= reply.value <= 1024
