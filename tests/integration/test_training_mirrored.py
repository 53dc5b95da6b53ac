"""Mirrored training beside what the equivalence matrix compares: nothing patched, refusals, loops of one's own."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.environment import worker_environments
from tfdist.testing.pool import WorkerPool

DEADLINE_SECONDS = 120
CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    (environment,) = worker_environments(
        os.environ, strategy="mirrored", ports=ports.free_ports(1), replicas_per_worker=2
    )
    with WorkerPool(lambda: [environment | {"PYTHONPATH": python_path(CASES)}]) as workers:
        workers.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the process
        yield workers


def call(pool: WorkerPool, function: str, **arguments: Any) -> Any:
    (reply,) = pool.call(f"mirrored_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


def test_plain_keras_is_left_alone(pool: WorkerPool) -> None:
    seen = call(pool, "plain_keras_before_and_after")
    assert not seen["patched"]
    assert seen["first"] == seen["again"]
    np.testing.assert_allclose(seen["under"], seen["first"], atol=1e-5)


def test_a_model_that_overrides_fit_is_found(pool: WorkerPool) -> None:
    assert call(pool, "models_that_override_fit") == {"steps": 5}


def test_a_step_is_written_for_one_device(pool: WorkerPool) -> None:
    assert call(pool, "replicas_outside_and_inside") == {"inside": [1], "outside": 2}


def test_dropout_differs_between_replicas_and_follows_its_seed(pool: WorkerPool) -> None:
    seen = call(pool, "dropout_masks")
    first, second = np.split(np.array(seen["a"]), 2)
    assert not np.array_equal(first, second)
    assert seen["a"] == seen["b"]
    np.testing.assert_allclose(first, seen["one"], atol=1e-6)  # replica 0 draws what one device draws
    assert 16 < (first > 0).sum() < 48
    assert 16 < (second > 0).sum() < 48


def test_a_model_without_call_trains_two_others(pool: WorkerPool) -> None:
    seen = call(pool, "two_models_that_compete")
    np.testing.assert_allclose(seen["two"], seen["one"], atol=1e-5)


def test_a_loop_of_ones_own_is_tensorflows(pool: WorkerPool) -> None:
    seen = call(pool, "loop_of_ones_own")
    assert seen["distributed"]
    assert seen["loss_error"] < 1e-4
    assert seen["weight_error"] < 1e-5


@pytest.mark.parametrize("wire_dtype", [None, "float16", "bfloat16"])
def test_an_accumulation_is_reduced_once(pool: WorkerPool, wire_dtype: str | None) -> None:
    seen = call(pool, "what_an_accumulation_reduces", wire_dtype=wire_dtype)
    assert seen["dtypes"] == [wire_dtype or "float32"]
    once = 2 * 4  # two replicas, four gradients
    assert seen["reduced"] == [0, 0, once, once, once, 2 * once]
    assert seen["moved"] == [False, True, False, False, True]
    assert seen["iterations"] == 2
    assert seen["logs"] == ["loss", "loss_scale", "skipped_steps"]


def test_gradients_of_a_loop_of_ones_own_are_added_up(pool: WorkerPool) -> None:
    seen = call(pool, "gradients_in_a_loop_of_ones_own")
    for ours, plain in zip(seen["distributed"], seen["plain"], strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-6)


def test_a_step_is_traced_once(pool: WorkerPool) -> None:
    assert call(pool, "states_in_memory", epochs=2) == {"traces": 2}  # one for each replica


CORNERS = (
    "optimizers_in_a_dictionary_and_a_list",
    "the_optimizer_of_a_model_inside",
    "one_scaled_loss_and_one_that_is_not",
    "a_loss_that_drops_examples",
    "a_scalar_beside_the_examples",
    "metrics_that_are_given_one_number",
    "logs_named_like_a_metric_that_was_not_updated",
    "a_frozen_layer_that_keeps_a_state",
    "statistics_far_from_zero",
    "predictions_with_several_rows_for_an_example",
    "predict_on_batch_before_all_else",
    "a_train_function_of_ones_own",
)


def corner(pool: WorkerPool, function: str, **arguments: Any) -> Any:
    (reply,) = pool.call(f"corner_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


@pytest.mark.parametrize("name", CORNERS)
def test_corners_give_the_numbers_of_one_device(pool: WorkerPool, name: str) -> None:
    seen = corner(pool, "both", name=name)
    np.testing.assert_allclose(seen["two"], seen["one"], rtol=1e-5, atol=1e-5)


def test_every_corner_is_in_the_table(pool: WorkerPool) -> None:
    assert sorted(corner(pool, "names")) == sorted(CORNERS)


def test_noise_without_a_seed_trains(pool: WorkerPool) -> None:
    assert np.isfinite(corner(pool, "noise_without_a_seed"))


def test_a_nest_is_reduced_as_tensorflow_does(pool: WorkerPool) -> None:
    assert corner(pool, "nested_sums") == [2.0, 20.0]


def test_a_loop_inside_a_model_gets_tensorflows_dataset(pool: WorkerPool) -> None:
    assert corner(pool, "loop_inside_a_model")


def test_batches_of_many_sizes_are_not_traced_one_by_one(pool: WorkerPool) -> None:
    assert corner(pool, "traces_of_train_on_batch") <= 2 * 2  # two replicas, and one relaxation of the shapes


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("jit", "UnsupportedError: jit_compile is True"),
        ("outside", "the metric 'loss' was created outside the scope"),
        ("scaled twice", "which reduces gradients by itself"),
        ("foreign", "Make the strategy with tfdist.strategies.MirroredStrategy()"),
        ("layer", "was created outside the scope of MirroredStrategy; it must be created inside"),
        ("metric", "the metric 'mae' was created outside the scope"),
        ("missing", "devices names CPU:7; this process has /device:CPU:0, /device:CPU:1"),
        ("twice", "each device may be named once"),
        ("none", "devices is empty"),
        ("text", "it must be a list of names"),
        ("late", "TensorFlow has started in this process with 2 CPU device(s)"),
        ("bool", "count is True (bool)"),
        ("name", "'mirored'; it must be one of 'mirrored', 'multi-worker'"),
        ("option", "unexpected keyword argument 'replicas'"),
        ("environment", "strategy is 'rng'"),
        ("workers", "runs in one process, and tfdist run gives 2 workers"),
        ("replicas", "TFDIST_REPLICAS_PER_WORKER"),
    ],
)
def test_wrong_use_is_refused_with_the_cure(pool: WorkerPool, wrong: str, says: str) -> None:
    said = _refusals(pool)
    assert says in said.get(wrong, "nothing"), said.get(wrong)


_SAID: dict[str, str] = {}


def _refusals(pool: WorkerPool) -> dict[str, str]:
    if not _SAID:
        _SAID.update(call(pool, "refusals"))
    return _SAID


def test_the_gradient_noise_scale_is_that_of_one_device_and_changes_nothing(pool: WorkerPool) -> None:
    def ask(function: str, **arguments: Any) -> Any:
        (reply,) = pool.call(f"noise_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
        assert reply.status == "returned", reply.detail
        return reply.value

    assert ask("measured") == pytest.approx(ask("measured", strategy=None), rel=1e-5)
    assert ask("trained", with_callback=True) == ask("trained", with_callback=False)
