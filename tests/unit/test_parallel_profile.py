"""The file of a profile, and `tfdist parallel plan` that reads one."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cli.main import main
from tfdist.errors import ConfigError, ConfigTypeError, MissingFileError
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.division_plans import plans
from tfdist.planner.layer_profile import LayerProfile, Profile, beside_each_other, read
from tfdist.planner.planner_link import Link
from tfdist.planner.stage_cost import Setting, Stage
from tfdist.planner.step_time import predict


def profile() -> Profile:
    layers = [
        LayerProfile(
            name=f"l{n}",
            kind="Dense",
            inputs=(n - 1,) if n else (),
            parameter_bytes=1 << 20,
            output_bytes=4.0,
            kept_bytes=1024.0,
            forward_seconds=(0.001, 0.004),
            backward_seconds=(0.002, 0.008),
        )
        for n in range(4)
    ]
    return Profile(
        model="dense",
        batch=32,
        batch_sizes=(8, 32),
        layers=tuple(layers),
        whole_seconds=(0.012, 0.048),
        slot_bytes=8 << 20,
        machine={"cores": "2"},
    )


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "größe profil.json"
    path.write_text(profile().to_json(), encoding="utf-8")
    assert read(path) == profile()


def test_of_several_at_once_the_slowest_is_kept_beside_one_alone(tmp_path: Path) -> None:
    slow = dataclasses.replace(profile(), whole_seconds=(0.012, 0.096))
    found = beside_each_other([profile(), slow, profile()], alone=profile())
    assert (found.processes, found.whole_seconds, found.alone) == (3, (0.012, 0.096), profile())
    path = tmp_path / "profile.json"
    path.write_text(found.to_json(), encoding="utf-8")
    assert read(path) == found
    assert (found.for_devices(1), found.for_devices(2), slow.for_devices(1)) == (profile(), found, slow)
    report = plans(found, [DeviceKind(count=2)], Link(latency_seconds=0.0, bytes_per_second=1e12), microbatches=1)
    steps = {one.name: one.prediction.seconds for one in report.plans}
    assert steps["one device"] == pytest.approx(0.048)
    assert steps["data 2"] == pytest.approx(0.04, abs=1e-5)  # of 16 examples, as fast as the slowest of several
    assert json.loads(report.to_json())["measured_at_once"] == 3


def test_a_pipelines_step_has_what_is_fixed_in_one_process_alone() -> None:
    alone = dataclasses.replace(profile(), fixed_seconds=0.1)
    given = {
        "profile": dataclasses.replace(profile(), fixed_seconds=0.5, processes=2, alone=alone),
        "link": Link(latency_seconds=0.0, bytes_per_second=1e12),
        "kinds": (DeviceKind(count=4),),
    }
    whole, halves = [Stage(begin=0, end=4, devices=2)], [Stage(begin=0, end=2), Stage(begin=2, end=4)]
    doubled = [dataclasses.replace(one, devices=2) for one in halves]
    plans = [(1, halves), (2, whole), (2, doubled)]
    assert [predict(Setting(**given, replicas=n), stages).fixed for n, stages in plans] == [0.1, 0.5, 0.5]


@given(batch=st.floats(0.25, 1e4))
def test_layers_sum_up_to_the_whole_and_rise(batch: float) -> None:
    one = profile()
    total = sum(forward + backward for forward, backward in one.seconds(batch))
    more = sum(forward + backward for forward, backward in one.seconds(2 * batch))
    assert 0 < total <= more
    assert sum(map(sum, one.seconds(8))) == pytest.approx(0.012)
    assert sum(map(sum, one.seconds(32))) == pytest.approx(0.048)


def written(folder: Path, change: dict[str, Any]) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps({**json.loads(profile().to_json()), **change}))
    return path


@pytest.mark.parametrize(
    ("change", "kind", "place", "fact"),
    [
        ({"kind": "other"}, ConfigError, "", "not a profile of layers"),
        ({"version": 2}, ConfigError, "", "version 2"),
        ({"layers": {}}, ConfigError, ": layers", "list"),
        ({"layers": [3]}, ConfigTypeError, ": layers[0]", "object"),
        ({"layers": [{"name": "a"}]}, ConfigError, ": layers[0]", "forward_seconds"),
        ({"batch": "32"}, ConfigTypeError, ": batch", "'32'"),
        ({"batch_size": 3}, ConfigError, "", "'batch_size'"),
        ({"machine": {"cores": 2}}, ConfigTypeError, ": machine", "texts"),
        ({"alone": 3}, ConfigError, ": alone", "not a profile of layers"),
    ],
)
def test_what_is_no_profile_is_refused(
    tmp_path: Path, change: dict[str, Any], kind: type[ConfigError], place: str, fact: str
) -> None:
    path = written(tmp_path, change)
    with refused(kind, name=f"{path}{place}", mentions=[fact]):
        read(path)


@pytest.mark.parametrize(
    ("change", "name", "fact"),
    [
        ({"layers": []}, "layers", "no layer"),
        ({"batch_sizes": [32, 8]}, "batch_sizes", "(32, 8)"),
        ({"update_seconds": -1.0}, None, "negative"),
        ({"processes": 0}, "processes", "at least 1"),
        ({"alone": {**json.loads(profile().to_json()), "batch": 64}}, "alone", "same layers and batch"),
        ({"alone": {**json.loads(profile().to_json()), "processes": 2}}, "alone", "one process alone"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, Any], name: str | None, fact: str
) -> None:
    path = written(tmp_path, change)
    with refused(ConfigError, name=name, mentions=[path.name, fact]):
        read(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"null"])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(path) in (caught.value.name, caught.value.path)


def test_a_missing_profile_is_said(tmp_path: Path) -> None:
    with refused(MissingFileError, path=tmp_path / "none.json", mentions=["--save-profile"]):
        read(tmp_path / "none.json")


def planned(folder: Path, *arguments: str) -> Result:
    path = folder / "profile.json"
    path.write_text(profile().to_json(), encoding="utf-8")
    return CliRunner().invoke(main, ["parallel", "plan", "--profile", str(path), *arguments])


def test_plans_of_a_profile(tmp_path: Path) -> None:
    done = planned(tmp_path, "--devices", "4", "--link", "100gbit", "--memory", "1G", "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {one["name"] for one in found["plans"]} >= {"one device", "data 4", "pipeline 4", "data 2 x pipeline 2"}
    assert found["plans"][found["best"]]["fits"]


def test_the_table_ends_with_the_command(tmp_path: Path) -> None:
    done = planned(tmp_path, "--devices", "2", "--link", "1gbit", "--memory", "13M", "train.py", "--epochs", "3")
    assert done.exit_code == 0, done.output
    assert "too much" in done.stdout
    command, code = done.stdout.splitlines()[-2:]
    assert command.startswith("TFDIST_STAGES=")
    assert command.endswith("tfdist run --strategy pipeline -n 2 --mesh pipeline=2 train.py --epochs 3")
    assert "PipelineStrategy(stages=(" in code


def test_the_table_says_what_was_measured(tmp_path: Path) -> None:
    done = planned(tmp_path, "--devices", "2", "--link", "1gbit")
    assert "one process alone\n" in done.stdout
    both = tmp_path / "both.json"
    both.write_text(beside_each_other([profile(), profile()], alone=profile()).to_json(), encoding="utf-8")
    arguments = ["parallel", "plan", "--profile", str(both), "--devices", "2", "--link", "1gbit"]
    done = CliRunner().invoke(main, arguments)
    assert "2 processes at once" in done.stdout


def test_nothing_fits(tmp_path: Path) -> None:
    done = planned(tmp_path, "--devices", "2", "--link", "1gbit", "--memory", "1M")
    assert done.exit_code == 1
    assert "nothing fits" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--devices N"),
        (["--devices", "0"], "at least 1"),
        (["--devices", "2", "--memory", "much"], "a size is"),
        (["--devices", "2", "--kind", "fast=2"], "--devices N"),
        (["--kind", "fast"], "a kind of devices"),
        (["--kind", "fast=2", "--kind", "fast=3"], "a name of its own"),
        (["--devices", "2", "--link", "quick"], "the link is"),
        (["--devices", "2", "--link", "1gbit", "--microbatches", "0"], "microbatches"),
        (["--devices", "2", "--at-once", "0"], "at-once"),
        (["--devices", "2", "--at-once", "2"], "--profile reads earlier measurements"),
    ],
)
def test_wrong_requests_end_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    link = [] if "--link" in arguments else ["--link", "1gbit"]
    done = planned(tmp_path, *arguments, *link)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_a_script_is_needed(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["parallel", "plan", "--devices", "2"])
    assert done.exit_code == 2
    assert "SCRIPT" in done.output
    done = CliRunner().invoke(main, ["parallel", "plan", "--devices", "2", str(tmp_path / "none.py")])
    assert done.exit_code == 2
    assert "no such file" in done.output
    done = CliRunner().invoke(main, ["parallel", "plan", "--devices", "2", "--at-once", "3", "train.py"])
    assert done.exit_code == 2
    assert "more than the 2 devices" in done.output
