"""The search for a batch: what is tried after what, and how a trial is judged."""

import json
import math
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tfdist.cli.main import main
from tfdist.errors import ConfigError, TfdistError
from tfdist.monitor.stopwatch import Measurement
from tfdist.tune import batch_size
from tfdist.tune.search import Outcome, Tried, fastest, following, largest, nearly_best
from tfdist.tune.trial import Job, Trial, judged
from tfdist.tune.tuning import Report, tune

FITS, TOO_LARGE, SHORT, FAILED = Outcome.FITS, Outcome.TOO_LARGE, Outcome.SHORT, Outcome.FAILED


def searched(
    machine: Callable[[int, int], Outcome],
    *,
    speed: Callable[[int], float] = float,
    start: int = 8,
    most: int = 4096,
    precision: float = 0.0,
) -> list[Tried]:
    """Search on a machine that is a function of the batch and of how often it was tried before."""
    trials: list[Tried] = []
    while (batch := following(trials, start=start, most=most, precision=precision)) is not None:
        outcome = machine(batch, sum(one.batch == batch for one in trials))
        trials.append(Tried(batch=batch, outcome=outcome, speed=speed(batch) if outcome is FITS else 0.0))
        assert len(trials) < 100, "the search does not end"
    return trials


@pytest.mark.parametrize("border", [1, 2, 7, 8, 9, 100, 127, 128, 1000, 4095])
@pytest.mark.parametrize("start", [1, 8, 300])
def test_the_border_is_found_exactly(border: int, start: int) -> None:
    trials = searched(lambda batch, _: FITS if batch <= border else TOO_LARGE, start=start)
    assert largest(trials) == border
    assert sum(one.batch == border + 1 for one in trials) == 2  # the next one was tried twice


@pytest.mark.parametrize("border", [37, 500, 3000])
def test_the_border_is_found_within_the_precision(border: int) -> None:
    trials = searched(lambda batch, _: FITS if batch <= border else TOO_LARGE, precision=0.1)
    found = largest(trials)
    refused = min(one.batch for one in trials if one.outcome is TOO_LARGE)
    assert found <= border < refused <= found + max(1, 0.1 * found)
    assert len(trials) <= 2 * math.log2(border) + 8


def test_everything_fits() -> None:
    trials = searched(lambda *_: FITS, most=100)
    assert [one.batch for one in trials][:5] == [8, 16, 32, 64, 100]
    assert largest(trials) == 100


def test_nothing_fits() -> None:
    trials = searched(lambda *_: TOO_LARGE)
    assert [one.batch for one in trials] == [8, 4, 2, 1, 1]


def test_one_that_fits_the_second_time_counts_as_fitting() -> None:
    """Another process had the memory for a while."""
    trials = searched(
        lambda batch, before: FITS if batch < 50 or (before and batch <= 100) else TOO_LARGE, precision=0.1
    )
    assert 90 < largest(trials) <= 100
    assert len(trials) < 40


def test_chance_does_not_keep_the_search_from_ending() -> None:
    for seed in range(200):
        found = searched(lambda batch, before, seed=seed: FITS if hash((batch, before, seed)) % 3 else TOO_LARGE)
        assert any(one.outcome is FITS for one in found) or found[-1].batch == 1


def test_the_end_of_the_data_is_no_border() -> None:
    trials = searched(lambda batch, _: FITS if batch <= 300 else SHORT, speed=lambda _: 1.0)
    assert [one.batch for one in trials if one.outcome is SHORT] == [512]
    assert largest(trials) == 256


def test_another_failure_of_the_first_batch_ends_it() -> None:
    assert len(searched(lambda *_: FAILED)) == 1


@pytest.mark.parametrize("peak", [8, 20, 90, 700])
def test_the_fastest_is_looked_for_between_those_that_were_tried(peak: int) -> None:
    def speed(batch: int) -> float:
        return 1000.0 / (1.0 + math.log2(batch / peak) ** 2)

    trials = searched(lambda batch, _: FITS if batch <= 1000 else TOO_LARGE, speed=speed, precision=0.1)
    assert 2 / 3 <= fastest(trials) / peak <= 3 / 2
    assert speed(nearly_best(trials)) >= 0.95 * speed(fastest(trials))
    assert nearly_best(trials) <= fastest(trials)


def measured(examples: int, replicas: int = 1, seconds: float = 0.5, **more: object) -> Measurement:
    blocks = [(4 * examples, seconds * factor) for factor in (1.0, 1.0, 9.0)]
    content = {"steps": 15, "examples": examples, "replicas": replicas, "blocks": blocks, "is_complete": True, **more}
    return Measurement(**content)  # type: ignore[arg-type]


JOB = Job(script=("train.py",), warm_up=3, steps=12)


@pytest.mark.parametrize(
    ("code", "output", "found", "outcome", "said"),
    [
        (0, "", [measured(64)], FITS, ""),
        (0, "", [measured(128, replicas=2)], FITS, ""),
        (0, "", [measured(0)], FITS, ""),
        (0, "", [measured(50)], SHORT, "no step had more than 50 examples"),
        (0, "", [measured(100, replicas=2)], SHORT, "no step had more than 100 examples"),
        (0, "", [measured(96)], FAILED, "does not train with the batch that it is given"),
        (0, "", [], FAILED, "without a step of training in a scope of tfdist"),
        (0, "", [measured(64, steps=5, is_complete=False)], SHORT, "trained 5 steps, and 15 are needed"),
        (137, "killed", [], TOO_LARGE, "killed by SIGKILL"),
        (1, "x\nResourceExhaustedError: Graph execution\ny", [], TOO_LARGE, "ResourceExhaustedError: Graph execution"),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'", [], TOO_LARGE, "std::bad_alloc"),
        (134, "F0000 env.cc:84] Thread collective_ops creation via pthread_create() failed.", [], TOO_LARGE, "pthread"),
        (1, "ValueError: no such layer", [], FAILED, "ended with code 1\nValueError: no such layer"),
        (None, "Epoch 1", [], FAILED, "not done after 600 s"),
    ],
)
def test_a_job_is_judged(code: int | None, output: str, found: list[Measurement], outcome: Outcome, said: str) -> None:
    trial = judged(64, code, output, found, JOB)
    assert trial.outcome is outcome
    assert said in trial.text


def test_speed_is_the_median_over_blocks_and_memory_the_largest() -> None:
    trial = judged(64, 0, "", [measured(128, 2, memory=10), measured(128, 2, memory=30)], JOB)
    assert trial.speed == pytest.approx(4 * 128 / 0.5)
    assert (trial.memory, trial.per_replica) == (30, 64)


def test_the_script_learns_its_batch() -> None:
    assert batch_size(32, environ={}) == 32
    assert batch_size(32, environ={"TFDIST_BATCH_SIZE": "7"}) == 7
    with pytest.raises(ConfigError, match="TFDIST_BATCH_SIZE is '0'"):
        batch_size(32, environ={"TFDIST_BATCH_SIZE": "0"})


def tuned(trial_of: Callable[[int, Job], Trial]) -> Report:
    return tune(JOB, start=8, most=64, precision=0.5, machine={}, trial_of=trial_of)


def test_a_report_says_what_was_found() -> None:
    def trial(batch: int, _: Job) -> Trial:
        if batch > 32:
            return Trial(batch=batch, outcome=TOO_LARGE, text="OOM when allocating")
        return Trial(batch=batch, outcome=FITS, examples=2 * batch, replicas=2, speed=100.0 - 1 / batch)

    report = tuned(trial)
    first, second, third = report.verdict()
    assert first == "largest that fits: 32 (32 on each of 2 replicas); 48: OOM when allocating"
    assert second == "most examples per second: 32 (32 on each of 2 replicas), with 100"
    assert third.startswith("smallest within 5% of it: 8 ")
    content = json.loads(report.to_json())
    assert content["chosen"] == {"largest": 32, "fastest": 32, "nearly": 8}
    assert content["trials"][0]["outcome"] == "fits"


def test_the_end_of_the_data_is_not_taken_for_the_end_of_memory() -> None:
    def short(batch: int, _: Job) -> Trial:
        return judged(batch, 0, "", [measured(batch, steps=9, is_complete=False)], JOB)

    def trial(batch: int, job: Job) -> Trial:
        return short(batch, job) if batch > 16 else Trial(batch=batch, outcome=FITS, examples=batch, speed=1.0)

    report = tuned(trial)
    assert [one.batch for one in report.trials if one.batch > 16] == [32]
    assert report.verdict()[0] == (
        "largest that could be measured, and memory did not run out: 16; 32: the script trained 9 steps, and 15 are "
        "needed: let it train longer, or --steps fewer"
    )
    (nothing,) = tuned(short).verdict()
    assert nothing.startswith("no batch was measured: 1 is the smallest that was tried. the script trained 9 steps")


def test_a_report_says_that_nothing_fits() -> None:
    report = tuned(lambda batch, _: Trial(batch=batch, outcome=TOO_LARGE, text="OOM"))
    assert report.verdict() == ["no batch fits: 1 is the smallest that was tried. OOM"]
    assert json.loads(report.to_json())["chosen"] == {}


def test_a_script_that_fails_is_shown() -> None:
    with pytest.raises(TfdistError, match="fails with a batch of 8: ended with code 1"):
        tuned(lambda batch, _: Trial(batch=batch, outcome=FAILED, text="ended with code 1\nValueError"))


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tune", "batch", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "there is no such file"),
        (["--strategy", "parameter-server", __file__], "are not measured"),
        (["--strategy", "mirrored", "-n", "2", __file__], "runs in one process"),
        (["--strategy", "mirorred", __file__], "strategy is 'mirorred'; it must be one of 'mirrored'"),
        (["--start", "9", "--max", "8", __file__], "--start is 9 and --max is 8"),
        (["--memory-limit", "many", __file__], "a size is 'many'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], said: str) -> None:
    result = invoked(*arguments)
    assert result.exit_code == 2
    assert said in result.output
