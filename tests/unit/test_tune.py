"""The search for a batch: what is tried after what, and how a trial is judged."""

import json
import math
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tests.refusals import absent, refused
from tfdist.cli.main import main
from tfdist.errors import ConfigError, TfdistError
from tfdist.monitor.stopwatch import Measurement
from tfdist.tune import batch_size
from tfdist.tune.batch_search import Outcome, Tried, fastest, following, largest, nearly_best
from tfdist.tune.batch_trial import Job, Trial, judged
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
    ("code", "output", "found", "outcome", "fact"),
    [
        (0, "", [measured(64)], FITS, ""),
        (0, "", [measured(128, replicas=2)], FITS, ""),
        (0, "", [measured(0)], FITS, ""),
        (0, "", [measured(50)], SHORT, "50 examples"),
        (0, "", [measured(100, replicas=2)], SHORT, "100 examples"),
        (0, "", [measured(96)], FAILED, "a step had 96 examples"),
        (0, "", [], FAILED, "without a step"),
        (0, "", [measured(64, steps=5, is_complete=False)], SHORT, "trained 5 steps"),
        (137, "killed", [], TOO_LARGE, "killed by SIGKILL"),
        (1, "x\nResourceExhaustedError: Graph execution\ny", [], TOO_LARGE, "ResourceExhaustedError: Graph execution"),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'", [], TOO_LARGE, "std::bad_alloc"),
        (134, "F0000 env.cc:84] Thread collective_ops creation via pthread_create() failed.", [], TOO_LARGE, "pthread"),
        (1, "ValueError: no such layer", [], FAILED, "code 1\nValueError: "),
        (None, "Epoch 1", [], FAILED, "not done after 600 s"),
    ],
)
def test_a_job_is_judged(code: int | None, output: str, found: list[Measurement], outcome: Outcome, fact: str) -> None:
    trial = judged(64, code, output, found, JOB)
    assert trial.outcome is outcome
    assert fact in trial.text


def test_speed_is_the_median_over_blocks_and_memory_the_largest() -> None:
    trial = judged(64, 0, "", [measured(128, 2, memory=10), measured(128, 2, memory=30)], JOB)
    assert trial.speed == pytest.approx(4 * 128 / 0.5)
    assert (trial.memory, trial.per_replica) == (30, 64)


def test_the_script_learns_its_batch() -> None:
    assert batch_size(32, environ={}) == 32
    assert batch_size(32, environ={"TFDIST_BATCH_SIZE": "7"}) == 7
    with refused(ConfigError, name="TFDIST_BATCH_SIZE", received="0"):
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
    assert not absent(first, "largest", "32 (32 on each", "2 replicas", "48: OOM when allocating")
    assert not absent(second, "most examples per second", "32 (32 on each", "with 100")
    assert not absent(third, "smallest within 5%", ": 8 ")
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
    largest = report.verdict()[0]
    assert not absent(largest, "could be measured", ": 16; 32: ", "9 steps", "15 are needed", "--steps")
    assert "fits" not in largest
    (nothing,) = tuned(short).verdict()
    assert not absent(nothing, "no batch was measured", ": 1 ", "9 steps")


def test_a_report_says_that_nothing_fits() -> None:
    report = tuned(lambda batch, _: Trial(batch=batch, outcome=TOO_LARGE, text="OOM"))
    (nothing,) = report.verdict()
    assert not absent(nothing, "no batch fits", ": 1 ", "OOM")
    assert json.loads(report.to_json())["chosen"] == {}


def test_a_script_that_fails_is_shown() -> None:
    with refused(TfdistError, name="batch", received=8, mentions=["code 1"]):
        tuned(lambda batch, _: Trial(batch=batch, outcome=FAILED, text="ended with code 1\nValueError"))


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tune", "batch", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "missing.py"),
        (["--strategy", "parameter-server", __file__], "are not measured"),
        (["--strategy", "mirrored", "-n", "2", __file__], "runs in one process"),
        (["--strategy", "mirorred", __file__], "strategy is 'mirorred'"),
        (["--start", "9", "--max", "8", __file__], "--start is 9 and --max is 8"),
        (["--memory-limit", "many", __file__], "a size is 'many'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], said: str) -> None:
    result = invoked(*arguments)
    assert result.exit_code == 2
    assert said in result.output
