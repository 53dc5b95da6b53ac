"""Ranges of hyper-parameters: read, drawn, laid out as a grid, perturbed; and what a script without a search gets."""

import contextlib
import errno
import json
import math
import os
import random
from pathlib import Path

import pytest

import tfdist
from tests.refusals import refused
from tfdist.doctor.cgroup import Limits
from tfdist.errors import ConfigError, CorruptDataError, MissingFileError
from tfdist.tune.search import search_journal
from tfdist.tune.search.optuna_sampler import suggested
from tfdist.tune.search.search_history import Declare, End, Report, Start
from tfdist.tune.search.search_run import opened, require_asked
from tfdist.tune.search.search_settings import SearchSettings
from tfdist.tune.search.search_space import Choice, Range, drawn, from_json, from_python, grid, parse_space, to_json
from tfdist.tune.search.search_trial import HyperParameters, ReportFiles, TrialRequest, report, requested, write_report
from tfdist.tune.search.waiting_trials import Orders, has_room


def test_ranges_are_read() -> None:
    texts = ["lr=log:1e-4:1e-1", "drop=linear:0:0.5:0.25", "n=int:1:4", "w=int-log:8:64:2", "u=32,6.5,relu", "b=bool"]
    assert parse_space(texts) == {
        "lr": Range(low=1e-4, high=1e-1, is_log=True),
        "drop": Range(low=0, high=0.5, step=0.25),
        "n": Range(low=1, high=4, is_integer=True),
        "w": Range(low=8, high=64, step=2, is_integer=True, is_log=True),
        "u": Choice(values=(32, 6.5, "relu")),
        "b": Choice(values=(False, True)),
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("lr", "--space"), ("=1,2", "--space"), ("lr=", "--space"), ("l r=1", "--space")),
        *(("lr=log:0:1", "lr"), ("lr=log:1", "lr"), ("lr=lin:0:1", "lr"), ("lr=linear:a:b", "lr")),
        *(("lr=linear:2:1", "lr"), ("n=int:0.5:2", "n"), ("lr=log:1:8:1", "lr"), ("lr=linear:0:1:0", "lr")),
        *(("u=1,1", "u"), ("lr=linear:0:inf", "lr"), ("lr=log:1:2:3:4", "lr")),
        *(("lr=linear:0:1:1e-9", "lr"), ("lr=log:1:1e9:1.000001", "lr")),
    ],
)
def test_what_is_no_range_is_refused(text: str, name: str) -> None:
    with refused(ConfigError, name=name):
        parse_space([text])


def test_a_name_has_one_range() -> None:
    with refused(ConfigError, name="lr"):
        parse_space(["lr=1,2", "lr=3,4"])


SPACE = parse_space(["lr=log:1e-4:1e-1", "n=int:1:4", "w=int-log:8:64", "drop=linear:0:0.5:0.25", "u=32,64", "b=bool"])


def test_values_are_in_their_ranges_and_follow_from_seed_and_trial() -> None:
    for trial in range(200):
        values = drawn(SPACE, seed=3, trial=trial)
        assert all(parameter.holds(values[name]) for name, parameter in SPACE.items())
        assert values == drawn(dict(reversed(SPACE.items())), seed=3, trial=trial)
    assert {drawn(SPACE, seed=3, trial=trial)["n"] for trial in range(50)} == {1, 2, 3, 4}
    assert type(drawn(SPACE, seed=0, trial=0)["w"]) is int
    assert drawn(SPACE, seed=3, trial=0) != drawn(SPACE, seed=4, trial=0)


@pytest.mark.parametrize("name", SPACE)
def test_perturbed_values_stay_in_their_ranges_and_move(name: str) -> None:
    parameter, source = SPACE[name], random.Random(0)
    found = set()
    for _ in range(40):
        value = parameter.draw(source)
        moved = parameter.perturb(value, source)
        assert parameter.holds(moved)
        assert type(moved) is type(value)
        found.add(moved != value)
    assert True in found


def test_a_grid_has_all_combinations() -> None:
    space = parse_space(["lr=log:1:100:10", "n=int:1:3:2", "b=bool"])
    assert len(grid(space)) == 3 * 2 * 2
    assert grid(space)[:2] == [{"lr": 1.0, "n": 1, "b": False}, {"lr": 1.0, "n": 1, "b": True}]
    for low, high, count in ((0, 0.3, 4), (-0.3, 0, 4), (-1, -0.1, 10)):  # whose last values rounding passes
        found = grid(parse_space([f"x=linear:{low}:{high}:0.1"]))
        assert (len(found), found[-1]["x"]) == (count, high)
    with refused(ConfigError, name="lr"):
        grid(parse_space(["lr=linear:0:1"]))


def test_integers_are_not_listed() -> None:
    """A seed has billions of values: each is drawn, and its neighbours are found, without a list of all."""
    (seeds,) = parse_space(["seed=int:0:4294967295"]).values()
    assert isinstance(seeds, Range)
    source = random.Random(1)
    for _ in range(20):
        value = int(seeds.draw(source))
        moved = int(seeds.perturb(value, source))
        expected = min(1.2 * value, seeds.high) if moved > value else 0.8 * value
        assert moved == pytest.approx(expected, abs=1)
    few = Range(low=1, high=9, step=3, is_integer=True)
    assert {few.draw(source) for _ in range(50)} == {1, 4, 7}
    assert {few.perturb(4, source) for _ in range(50)} == {1, 7}
    assert few.perturb(7, random.Random(1)) in (4, 7)
    with refused(ConfigError, name="m"):
        grid(parse_space(["n=int:0:4294967295:1000000", "m=int:1:4294967295"]))


@pytest.mark.parametrize("text", ["int:0:4294967295:1.5", "int-log:1:4294967295:1.0000001", "linear:0:1:1e-9"])
def test_values_that_would_be_listed_are_counted_first(text: str) -> None:
    with refused(ConfigError, name="n"):
        parse_space([f"n={text}"])


@pytest.mark.parametrize("parameter", SPACE.values())
def test_parameters_go_through_json(parameter: Range | Choice) -> None:
    assert from_json(json.loads(json.dumps(to_json(parameter)))) == parameter


def test_a_program_passes_lists_and_texts() -> None:
    assert from_python({"u": [1, 2], "lr": "log:1:2"}) == parse_space(["u=1,2", "lr=log:1:2"])
    for wrong in (3, None, [], ["a", "a"], [[1]]):
        with refused(ConfigError, name="u"):
            from_python({"u": wrong})


def test_without_a_search_a_script_has_its_defaults() -> None:
    hp = tfdist.search.parameters()
    assert hp.Float("lr", 1e-3, 1e-1, sampling="log") == 1e-3
    assert hp.Int("n", 1, 4, default=2) == 2
    assert hp.Choice("u", ["a", "b"]) == "a"
    assert hp.Boolean("b", default=True) is True
    assert hp.get("n") == 2
    with refused(ConfigError, name="m"):
        hp.get("m")
    assert tfdist.search.folder() is None
    report({"loss": 1.0}, step=1)


def request(folder: Path, **options: object) -> TrialRequest:
    known = {"trial": 2, "until": 3, "last": 9, "metric": "loss", "seed": 1, "values": {}, "draws": True}
    return TrialRequest(folder=str(folder), **{**known, **options})  # type: ignore[arg-type]


def test_a_trial_draws_what_the_search_would_have_drawn(tmp_path: Path) -> None:
    hp = HyperParameters(request(tmp_path))
    value = hp.Float("lr", 1e-4, 1e-1, sampling="log")
    assert value == drawn(SPACE, seed=1, trial=2)["lr"]
    assert json.loads((tmp_path / "declared.jsonl").read_text()) == {
        "name": "lr",
        "parameter": to_json(SPACE["lr"]),
        "value": value,
    }
    assert HyperParameters(request(tmp_path, values={"lr": 0.5})).Float("lr", 0, 1) == 0.5
    assert HyperParameters(request(tmp_path, draws=False)).Float("lr", 0, 1, default=0.25) == 0.25
    with refused(ConfigError, name="lr"):
        HyperParameters(request(tmp_path, values={"lr": "fast"})).Float("lr", 0, 1)


def test_a_metric_that_is_missing_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with refused(ConfigError, name="--metric", received="loss") as caught:
        write_report(request(tmp_path), {"losses": 1.0}, 1)
    assert "losses" in str(caught.value)
    write_report(request(tmp_path), {"loss": float("nan")}, 1)
    with pytest.raises(ConfigError):
        write_report(request(tmp_path), {"loss": "low"}, 1)


def test_a_loop_of_ones_own_ends_where_it_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in request(tmp_path).to_environment().items():
        monkeypatch.setenv(name, text)
    for step in (1, 2):
        report(0.5, step=step)
    with pytest.raises(SystemExit) as ended:
        report(0.5, step=3)
    assert not ended.value.code
    assert len((tmp_path / "reports.jsonl").read_text().splitlines()) == 3


def test_a_report_that_a_full_disk_has_cut_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ReportFiles(2, tmp_path)
    write_report(request(tmp_path), {"loss": 1.0}, 1)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:14]))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            write_report(request(tmp_path), {"loss": 2.0}, 2)
    assert [one.step for one in files.news() if isinstance(one, Report)] == [1]
    write_report(request(tmp_path), {"loss": 3.0}, 3)
    assert [one.step for one in files.news() if isinstance(one, Report)] == [3]


def test_a_paused_loop_waits_for_orders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, orders = Orders(tmp_path / "earlier"), Orders(tmp_path / "orders")
    with contextlib.closing(earlier), contextlib.closing(orders):
        for name, text in request(tmp_path, orders=orders.path).to_environment().items():
            monkeypatch.setenv(name, text)
        orders.say(6)
        report(0.5, step=3)
        found = requested()
        assert found is not None
        assert (found.until, found.orders) == (6, orders.path)
        report(0.5, step=5)
        orders.say(0)
        with pytest.raises(SystemExit) as ended:
            report(0.5, step=6)
        assert not ended.value.code
        for own, waits in ((orders, True), (earlier, False)):
            files = ReportFiles(2, tmp_path, orders=own.path)
            assert [one.step for one in files.news() if isinstance(one, Report)] == [3, 5, 6]
            assert files.waits == waits
    assert not [*tmp_path.glob("o*"), *tmp_path.glob("earlier")]


def test_processes_wait_only_while_a_quarter_of_the_memory_is_free(tmp_path: Path) -> None:
    for free, expected in ((25, True), (24, False)):
        (tmp_path / "meminfo").write_text(f"MemTotal: 100 kB\nMemAvailable: {free} kB\nHugePages_Total: 0\n")
        assert has_room(tmp_path / "meminfo", Limits()) == expected
    assert not has_room(tmp_path / "none", Limits(memory_bytes=100, memory_used_bytes=76))
    assert has_room(tmp_path / "none", Limits())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"metric": "quality"}, "--mode"),
        ({"min_epochs": 30}, "--min-epochs"),
        ({"scheduler": "grid"}, "--space"),
        ({"sampler": "tpe"}, "--space"),
        ({"scheduler": "grid", "sampler": "tpe", "space": {"u": Choice(values=(1,))}}, "--sampler"),
        ({"perturb": ("lr",), "space": {"u": Choice(values=(1,))}}, "--perturb"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object], name: str) -> None:
    with refused(ConfigError, name=name):
        SearchSettings(target="train.py", **options)  # type: ignore[arg-type]


def test_settings_go_through_their_file(tmp_path: Path) -> None:
    settings = SearchSettings(target="train.py", space=SPACE, perturb=("lr",), arguments=("--x", "1"), slots=3)
    assert SearchSettings.from_json(settings.to_json(), path=tmp_path) == settings
    assert settings.direction == "min"
    assert SearchSettings(target="a", metric="val_accuracy").direction == "max"
    for wrong in ("", "[]", "{}", settings.to_json().replace('"format": 1', '"format": 2')):
        with pytest.raises(CorruptDataError):
            SearchSettings.from_json(wrong, path=tmp_path)


def test_tpe_learns_from_the_history_alone() -> None:
    history = SearchSettings(target="train.py", metric="loss").make_history(1)
    space = parse_space(["x=linear:0:1", "n=int:1:5:2", "u=a,b", "f=log:1:8:2"])
    for trial in range(30):
        values = suggested(space, history, trial=trial, seed=0)
        assert values == suggested(space, history, trial=trial, seed=0)
        assert all(parameter.holds(values[name]) for name, parameter in space.items())
        history.add(Start(trial, values, 1))
        history.add(Declare(trial, "more", Choice(values=(1, 2)), 1))
        if trial != 7:  # which still runs
            history.add(Report(trial, 1, (float(values["x"]) - 0.3) ** 2))
            history.add(End(trial, "finished"))
    early, late = (
        [abs(float(history.trials[trial].values["x"]) - 0.3) for trial in trials]
        for trials in (range(10), range(20, 30))
    )
    assert sum(late) < sum(early) / 2


def test_tpe_avoids_where_runs_diverge() -> None:
    history = SearchSettings(target="train.py", metric="loss").make_history(1)
    space = parse_space(["x=linear:0:1"])
    for trial in range(40):
        values = suggested(space, history, trial=trial, seed=0)
        x = float(values["x"])
        history.add(Start(trial, values, 1))
        history.add(Report(trial, 1, math.nan if x > 0.5 else (x - 0.3) ** 2))
        history.add(End(trial, "finished"))
    assert sum(float(trial.values["x"]) > 0.5 for trial in history.trials.values()) < 20  # as many as at random


def test_a_cut_line_of_a_journal_is_left_out_and_a_broken_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    events = [Start(0, {"lr": 0.1}, 3), Report(0, 3, 0.5), End(0, "paused")]
    assert list(search_journal.read(path)) == []
    with search_journal.Journal(path) as journal:
        for event in events:
            journal.write(event)
    path.write_bytes(path.read_bytes()[:-5])
    assert list(search_journal.read(path)) == events[:-1]
    search_journal.repair(path)
    with search_journal.Journal(path) as journal:
        journal.write(events[-1])
    assert list(search_journal.read(path)) == events
    path.write_text("{}\n")
    with pytest.raises(CorruptDataError):
        list(search_journal.read(path))


def test_a_name_that_no_script_asks_for_is_refused() -> None:
    settings = SearchSettings(target="train.py", space=parse_space(["lr=1,2", "unit=1,2"]))
    history = settings.make_history(1)
    for trial in range(3):
        require_asked(settings, history)
        asked = Declare(trial, "lr", settings.space["lr"], 1), Declare(trial, "units", settings.space["unit"], 1)
        for event in (Start(trial, {"lr": 1, "unit": 2}, 1), *asked, Report(trial, 1, 0.5), End(trial, "paused")):
            history.add(event)
    with refused(ConfigError, name="--space", received="unit") as caught:
        require_asked(settings, history)
    assert "'units'" in str(caught.value)
    history.add(Declare(2, "unit", settings.space["unit"], 2))
    require_asked(settings, history)


def test_a_folder_without_a_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        opened(tmp_path)
