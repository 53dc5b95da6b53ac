"""Mirrored training beside what the equivalence matrix compares: nothing patched, refusals, loops of one's own."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.cases import refusal_fields
from tests.integration.forks import OPTIMIZED, Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.pool import WorkerPool, worker_environments

DEADLINE_SECONDS = 800
CASES = Path(__file__).parent / "cases"


def started(forking: Forks, **variables: str) -> WorkerPool:
    (environment,) = worker_environments(
        os.environ, strategy="mirrored", ports=ports.free_ports(1), replicas_per_worker=2
    )
    environment |= {"PYTHONPATH": python_path(CASES), **variables}
    pool = WorkerPool(lambda: [environment], start=forking.worker)
    pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the process
    return pool


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    with started(forking) as workers:
        yield workers


def call(pool: WorkerPool, function: str, *, cases: str = "mirrored_cases", **arguments: Any) -> Any:
    (reply,) = pool.call(f"{cases}:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


def test_plain_keras_is_left_alone(pool: WorkerPool) -> None:
    seen = call(pool, "plain_keras_before_and_after")
    assert not seen["patched"]
    assert seen["first"] == seen["again"]
    np.testing.assert_allclose(seen["under"], seen["first"], atol=1e-5)


def test_a_model_that_overrides_fit_is_found(pool: WorkerPool) -> None:
    assert call(pool, "models_that_override_fit") == {"steps": 5}


def test_uneven_shares_are_taken_by_loops_of_ones_own_too_and_refused_where_a_replica_has_no_rows(
    pool: WorkerPool,
) -> None:
    shares = functools.partial(call, pool, cases="share_cases")
    assert shares("rows_of_a_loop_of_ones_own") == [[0, 1, 2, 3, 4, 5], [6, 7]]
    seen = shares("too_few_rows")
    assert seen["fit"][:3] == ["ConfigError", "shares", "(3, 1)"]
    assert seen["set"][:3] == ["ConfigError", "shares", "(1, 2, 3)"]


@pytest.mark.parametrize("name", ["FedProx", "Scaffold"])
def test_a_federated_client_with_two_devices_has_the_weights_of_one(pool: WorkerPool, name: str) -> None:
    kinds = call(pool, "distance_to_one_device", cases="federated_cases", name=name)
    assert [kinds[kind]["replicas"] for kind in ("mirrored", "model-parallel")] == [2, 1]
    for kind, found in kinds.items():
        assert found["weights"] < 1e-5, kind
        assert found["losses"][0] == pytest.approx(found["losses"][1], abs=1e-5), kind


def test_a_step_is_written_for_one_device(pool: WorkerPool) -> None:
    assert call(pool, "replicas_outside_and_inside") == {"inside": [1], "outside": 2}


def test_dropout_differs_between_replicas_and_follows_its_seed(pool: WorkerPool) -> None:
    seen = call(pool, "dropout_masks")
    first, second = np.split(np.array(seen["a"]), 2)
    assert not np.array_equal(first, second)
    assert seen["a"] == seen["b"]
    np.testing.assert_allclose(first, seen["one"], atol=1e-6)  # replica 0 draws what one device draws
    assert 6 < (first > 0).sum() < 18
    assert 6 < (second > 0).sum() < 18


def test_a_model_without_call_trains_two_others(pool: WorkerPool) -> None:
    seen = call(pool, "two_models_that_compete")
    np.testing.assert_allclose(seen["two"], seen["one"], atol=1e-5)


def test_numbers_are_looked_at_as_on_one_device(pool: WorkerPool) -> None:
    assert call(pool, "numbers") == {}


def test_a_loop_of_ones_own_is_tensorflows(pool: WorkerPool) -> None:
    seen = call(pool, "loop_of_ones_own")
    assert seen["distributed"]
    assert seen["loss_error"] < 1e-4
    assert seen["weight_error"] < 1e-5


def test_a_function_may_run_twice_and_reduce_between(pool: WorkerPool) -> None:
    seen = call(pool, "two_runs_in_a_function", cases="function_cases")
    assert seen["rows"] == [4, 4, 3, 4, 4, 3]
    assert seen["apart"] < 1e-5


def test_a_function_may_make_its_iterator(pool: WorkerPool) -> None:
    # on no more cores than replicas TensorFlow waits for ever, with the threads that it takes by itself
    assert call(pool, "iterators_inside_functions", cases="function_cases") == [
        rows * (rows - 1) for rows in range(3, 9) for _ in range(3)
    ]


def test_a_gather_that_does_not_fit_harms_nothing_after_it(pool: WorkerPool) -> None:
    seen = call(pool, "a_gather_that_does_not_fit")
    assert seen == {"failed": ["traced", "run", "eager", "gather"], "gathered": [0, 0, 1, 1], "updates": 5}


def test_counts_are_reset_without_a_reduction(pool: WorkerPool) -> None:
    assert call(pool, "counts_are_reset", cases="counter_cases") == {
        "before": 4.0,
        "after": [0.0, 0.0],
        "reductions": 0,
        "assigned": [4.0, [2.0, 2.0], [5.0, 5.0], 10.0, 9.0],
    }


def test_an_optimizer_outside_of_replicas_updates_every_copy(pool: WorkerPool) -> None:
    for name, seen in call(pool, "optimizers_outside_of_replicas").items():
        (one,) = seen["one"]["copies"]
        np.testing.assert_allclose(seen["under"]["copies"], [one, one], atol=1e-6, err_msg=name)
        assert one != [1.0, 2.0, 3.0], name
        assert seen["under"]["iterations"] == seen["one"]["iterations"], name


def test_rows_with_a_shape_of_numbers_are_added_up(pool: WorkerPool) -> None:
    assert call(pool, "rows_with_a_shape_of_numbers") == [[1.0, 2.0, 1.0]] * 2


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


def test_positions_of_a_loop_of_ones_own_are_there_once(pool: WorkerPool) -> None:
    assert max(call(pool, "positions_in_a_loop_of_ones_own").values()) < 1e-6


def test_reducers_give_the_gradients_of_one_device(pool: WorkerPool) -> None:
    (reply,) = pool.call("reducer_cases:collectives", {}, timeout_seconds=DEADLINE_SECONDS)
    assert reply.value == [], reply


def test_a_gradient_enters_few_files_between_the_tape_and_the_update(pool: WorkerPool) -> None:
    entered = call(pool, "files", cases="gradient_walk", collectives="tensorflow")
    assert "gradients/reduction/reducer.py" in entered
    assert not any(one.startswith("gradients/sharding/") for one in entered), "nothing is sharded"
    assert len(entered) <= 12, entered


def test_a_batch_crosses_few_files_from_fit_to_the_step_of_a_replica(pool: WorkerPool) -> None:
    crossed = call(pool, "files", cases="batch_walk")
    assert {"training/global_batches.py", "training/keras_loop.py", "training/replica/replica_step.py"} <= set(crossed)
    assert len(crossed) <= 10, crossed


def test_a_step_is_traced_once(pool: WorkerPool) -> None:
    assert call(pool, "states_in_memory", epochs=2) == {"traces": 3}  # for each replica, and tried for means and sums


CORNERS = (
    "optimizers_in_a_dictionary_and_a_list",
    "the_optimizer_of_a_model_inside",
    "one_scaled_loss_and_one_that_is_not",
    "a_loss_that_drops_examples",
    "rows_of_a_partial_batch_in_a_graph_of_two_steps",
    "rows_of_a_partial_batch_in_a_program_of_two_steps",
    "a_scalar_beside_the_examples",
    "metrics_that_are_given_one_number",
    "logs_named_like_a_metric_that_was_not_updated",
    "a_frozen_layer_that_keeps_a_state",
    "predictions_with_several_rows_for_an_example",
    "predict_on_batch_before_all_else",
    "predictions_of_sparse_batches_before_all_else",
    "a_train_function_of_ones_own",
)
FAR = "statistics_far_from_zero"


def corner(pool: WorkerPool, function: str, **arguments: Any) -> Any:
    (reply,) = pool.call(f"corner_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


@pytest.mark.parametrize("name", CORNERS)
def test_corners_give_the_numbers_of_one_device(pool: WorkerPool, name: str) -> None:
    seen = corner(pool, "both", name=name)
    np.testing.assert_allclose(seen["two"], seen["one"], rtol=1e-5, atol=1e-5)


def test_statistics_far_from_zero_are_those_of_one_device_as_users_train(forking: Forks) -> None:
    """Optimized graphs agree to within 1e-5; as traced, one number is 1.5e-5 off."""
    with started(forking, **{OPTIMIZED: "1"}) as optimizing:
        seen = corner(optimizing, "both", name=FAR)
    np.testing.assert_allclose(seen["two"], seen["one"], rtol=1e-5, atol=1e-5)


def test_every_corner_is_tested(pool: WorkerPool) -> None:
    assert sorted(corner(pool, "names")) == sorted([*CORNERS, FAR])


def test_noise_without_a_seed_trains(pool: WorkerPool) -> None:
    assert np.isfinite(corner(pool, "noise_without_a_seed"))


def test_a_nest_is_reduced_as_tensorflow_does(pool: WorkerPool) -> None:
    assert corner(pool, "nested_sums") == [2.0, 20.0]


def test_a_loop_inside_a_model_gets_tensorflows_dataset(pool: WorkerPool) -> None:
    assert corner(pool, "loop_inside_a_model")


def test_batches_of_many_sizes_are_not_traced_one_by_one(pool: WorkerPool) -> None:
    assert corner(pool, "traces_of_train_on_batch") <= 1 + 2 * 2  # tried; two replicas, one relaxation of the shapes


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("jit", ("UnsupportedError", ..., ..., "'norm'")),
        ("jit operation", ("UnsupportedError", "jit_compile", "AsString")),
        ("jit order", ("UnsupportedError", "jit_compile", ...)),
        ("outside", ("ConfigError", ...)),
        ("optimizer", ("ConfigError", "adam", None)),
        ("wrapped", ("ConfigError", "adam", None)),
        ("distributed", ("ConfigError", "adam", None)),
        ("another scope", ("ConfigError", ..., None)),
        ("another model", ("ConfigError", ..., None)),
        ("compiled outside", ("ConfigError", "adam", None)),
        ("scaled twice", ("ConfigError", ..., ...)),
        ("foreign", ("UnsupportedError", "MirroredStrategy", "2")),
        ("layer", ("ConfigError", ..., None)),
        ("metric", ("ConfigError", "mae", None)),
        ("missing", ("ConfigError", "devices", "CPU:7")),
        ("twice", ("ConfigError", "devices", "['CPU:0', 'cpu:0']")),
        ("none", ("ConfigError", "devices", "[]")),
        ("text", ("ConfigTypeError", "devices", "CPU:0")),
        ("late", ("ConfigError", "use_logical_cpus", "5")),
        ("bool", ("ConfigTypeError", "count", "True")),
        ("name", ("ConfigError", "strategy", "mirored")),
        ("option", ("ConfigError", "mirrored", "{'replicas': 2}")),
        ("environment", ("ConfigError", "strategy", "rng")),
        ("workers", ("ConfigError", "mirrored", "2")),
        ("replicas", ("ConfigError", "TFDIST_REPLICAS_PER_WORKER", "two")),
    ],
)
def test_wrong_use_is_refused(pool: WorkerPool, wrong: str, expected: tuple[Any, ...]) -> None:
    report = _refusals(pool)[wrong]
    assert refusal_fields.are(report, *expected), report


_REPORTS: dict[str, list[Any]] = {}


def _refusals(pool: WorkerPool) -> dict[str, list[Any]]:
    if not _REPORTS:
        _REPORTS.update(call(pool, "refusals"))
    return _REPORTS


def test_the_gradient_noise_scale_is_that_of_one_device_and_changes_nothing(pool: WorkerPool) -> None:
    def ask(function: str, **arguments: Any) -> Any:
        (reply,) = pool.call(f"noise_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
        assert reply.status == "returned", reply.detail
        return reply.value

    assert ask("measured") == pytest.approx(ask("measured", strategy=None), rel=1e-5)
    assert ask("trained", with_callback=True) == ask("trained", with_callback=False)


def _reductions(pool: WorkerPool, function: str) -> Any:
    (reply,) = pool.call(f"reduction_cases:{function}", {}, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


def test_what_a_step_reduces_to_is_found_and_what_is_neither_is_said_once(pool: WorkerPool) -> None:
    seen = _reductions(pool, "what_is_said")
    said = {name: run["said"] for name, run in seen.items()}
    for name in ("mean in a step", "sum in a step"):
        (sentence,) = said.pop(name)
        assert "'batch_normalization" in sentence
    (sentence,) = said.pop("mask in a step")
    assert "neither a mean" in sentence
    assert 'reduction="mean_with_sample_weight"' in sentence
    assert not any(said.values()), said
    sums = {name: run["sums"] for name, run in seen.items()}
    assert sums["mean in a step"] == sums["mask that is meant"] == []
    assert ["gradient", 0] in sums["sum in a step"]
    for other in ("sum in a step, said", "eagerly"):
        for one, same in zip(seen["sum in a step, found"]["weights"], seen[other]["weights"], strict=True):
            np.testing.assert_allclose(one, same, atol=1e-5)


def test_a_gradient_of_a_gradient_through_statistics_of_the_batch_is_said_once(pool: WorkerPool) -> None:
    said = _reductions(pool, "a_gradient_of_a_gradient")["said"]
    assert sum("the gradient of a gradient" in one for one in said) == 1, said


def test_trying_a_step_changes_nothing(pool: WorkerPool) -> None:
    states = _reductions(pool, "states_around_a_trial")
    assert states["tried"] == states["told"]
    seen = _reductions(pool, "steps_with_a_counter")
    assert seen["counts"] == [seen["steps"]] * 2
    assert len(seen["said"]) == 1
    assert "AssignAddVariableOp" in seen["said"][0]


def test_an_optimizer_that_its_first_step_builds_is_on_every_replica(pool: WorkerPool) -> None:
    seen = _reductions(pool, "slots_on_every_replica")
    for first, second in seen["copies"]:
        assert first == second
    slots = [name for name in seen["names"] if "momentum" in name]
    assert len(slots) == len(seen["built"])
    assert all("replica" not in name for name in seen["names"])


def test_optimizers_that_their_first_step_builds_eagerly_have_the_numbers_of_one_device(pool: WorkerPool) -> None:
    seen = call(pool, "apart", cases="first_step_cases", cases_of="mirrored_cases", run_eagerly=True)
    assert {name: apart for name, apart in seen.items() if apart > 1e-5} == {}


def test_observers_are_told_of_as_many_steps_as_the_model_counts(pool: WorkerPool) -> None:
    seen = call(pool, "of_replicas", cases="step_cases")
    for name, case in seen.items():
        assert case["are_sound"], name
        assert case["are_in_a_row"], name
    usual = ["dispatch", "input", "execute"]
    traced = [*usual, "trace"]
    fit = seen["fit_with_validation"]
    assert fit["kinds"] == ["train", "train", "train", "test", "train", "train", "train", "test", "predict"]
    assert fit["phases"] == [traced, usual, usual, traced, *[usual] * 4, traced]
    assert fit["updates"] == 6
    inner = seen["evaluated_in_callbacks"]
    assert (inner["kinds"], inner["updates"]) == (["test", "train", "test"] * 3, 3)
    assert inner["phases"] == [usual] * 9, "one event for each phase of a step"
    packed = seen["steps_per_execution"]
    assert packed["phases"] == [["dispatch", "execute", "trace"], ["dispatch", "execute"]], (
        "no batch is taken in Python"
    )
    assert packed["updates"] == 3
    single = seen["single_calls"]
    assert (single["kinds"], single["updates"]) == (["train", "train", "train", "test", "test"], 3)
    assert single["phases"] == [traced, usual, usual, traced, usual]
    assert seen["a_loop_of_ones_own"]["phases"] == [["dispatch", "execute"]]


def test_steps_of_one_execution_are_those_of_single_calls_to_the_bit(pool: WorkerPool) -> None:
    seen = call(pool, "at_once", cases="step_cases")
    assert (seen["compared"] > 20, seen["differ"]) == (True, [])
    assert seen["calls"] == [1] * 5, "of 13 batches a graph predicts four in a call, and the last call finds none"


def test_several_steps_in_a_graph_tell_that_they_go_on(pool: WorkerPool) -> None:
    seen = call(pool, "signs_of_life", cases="step_cases")
    assert (seen["examples"], seen["last"]) == ([8, 8], 8)
    assert seen["activities"]
    assert set(seen["activities"]) <= {"INPUT", "STEPPING"}


def test_a_step_that_raises_has_ended_for_its_observers(pool: WorkerPool) -> None:
    seen = call(pool, "eager", cases="step_cases")
    assert seen["are_sound"]
    assert seen["are_in_a_row"]
    assert seen["phases"] == [["dispatch", "input", "python"], ["dispatch", "input"], ["dispatch", "input", "python"]]
    assert seen["updates"] == 2


def refusal(pool: WorkerPool, function: str, **arguments: Any) -> Any:
    arguments = {"cases_of": "mirrored_cases"} | arguments
    (reply,) = pool.call(f"refusal_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    assert reply.status == "returned", f"{reply.status}: {reply.message}\n{reply.detail}"
    return reply.value


@pytest.mark.parametrize("moved", ["self", "callbacks", "_make_function", "_maybe_symbolic_build"])
def test_keras_that_is_not_recognised_is_refused(pool: WorkerPool, moved: str) -> None:
    seen = refusal(pool, "refusals", moved=moved)
    if moved == "callbacks":  # these have none
        for method in ("train_on_batch", "test_on_batch", "predict_on_batch"):
            assert seen.pop(method) == "right"
    for method, came in seen.items():
        assert came.startswith("UnsupportedError: "), (method, came)
        assert "TensorFlow 2." in came, (method, came)
        assert "replaced methods" in came, (method, came)


def test_keras_that_is_recognised_is_right(pool: WorkerPool) -> None:
    assert set(refusal(pool, "refusals", moved="nothing").values()) == {"right"}


def test_a_loop_of_ones_own_works_where_keras_is_not_recognised(pool: WorkerPool) -> None:
    seen = refusal(pool, "loop_of_ones_own")
    assert seen == {"traced": 2.0, "eager": [2.0, 2.0], "replicas": 2, "count": 3.0}


def test_a_model_may_train_inside_the_fit_of_another(pool: WorkerPool) -> None:
    assert refusal(pool, "a_batch_of_another_model_inside_fit") == ["right"]


def test_keras_2_is_refused_and_others_are_not(pool: WorkerPool) -> None:
    seen = refusal(pool, "in_another_package")
    assert "tf_keras.src.engine.training" in seen.pop("tf_keras.src.engine.training")
    assert set(seen.values()) == {"nothing"}


def test_models_that_no_strategy_has_met_are_refused(pool: WorkerPool) -> None:
    seen = refusal(pool, "first_used_otherwise")
    assert "and never compiled" in seen.pop("uncompiled")
    assert seen.pop("then") == "(11, 1)"
    for method, came in seen.items():
        assert came.startswith("ConfigError: "), (method, came)
        assert "MirroredStrategy" in came, (method, came)


def test_an_untested_pair_trains_only_if_its_step_is_right(pool: WorkerPool) -> None:
    seen = refusal(pool, "untested_pair")
    assert seen["wrong"].startswith("UnsupportedError: TensorFlow 2.")
    assert "weights: apart by 0.03" in seen["wrong"]
    assert seen["right"] == "right"


def test_a_distribution_of_keras_is_followed(pool: WorkerPool) -> None:
    seen = call(pool, "trained", cases="distribution_cases")
    assert seen["replicas"] == 2
    np.testing.assert_allclose(seen["distributed"], seen["plain"], atol=1e-5)
    np.testing.assert_allclose(seen["split"], seen["plain"], atol=1e-5)


def test_a_distribution_that_cannot_be_followed_is_refused(pool: WorkerPool) -> None:
    reports = call(pool, "refusals", cases="distribution_cases")
    setter = "keras.distribution.set_distribution"
    for name, expected in {
        "none set": ("ConfigError", "distribution", "None"),
        "split": ("ConfigError", "devices", "cpu:7"),
        "axes": ("ConfigError", "distribution", "['batch', 'model']"),
        "mesh": ("ConfigTypeError", "distribution"),
        "missing": ("ConfigError", "devices", "cpu:7"),
        "fit split": ("UnsupportedError", setter, "ModelParallel over cpu:0, cpu:1"),
        "fit one": ("UnsupportedError", setter, "DataParallel over cpu:0"),
    }.items():
        assert refusal_fields.are(reports[name], *expected), (name, reports[name])


def test_a_graph_that_takes_its_batches_computes_what_python_gives_it(pool: WorkerPool) -> None:
    seen = call(pool, "both_ways", cases="lone_replica_cases")
    assert seen["made ahead"]["arrays"] == seen["graph"]["arrays"], "what is made ahead takes no step"
    for name, found in seen["graph"].items():
        assert found.pop("in_a_graph"), name
        assert not seen["python"][name].pop("in_a_graph"), name
        assert found == seen["python"][name], name
        assert found["steps"] == 10, name


def test_batches_that_are_copied_ahead_are_the_same(pool: WorkerPool) -> None:
    seen = call(pool, "early_and_late", cases="device_batch_cases")
    assert set(seen) == {"1 x 1", "2 x 3"}
    for name, found in seen.items():
        assert found["equal"], name
        assert found["early"], name
        assert all(found["early"]), name
    assert call(pool, "devices_of_a_batch", cases="device_batch_cases") == [*["CPU:0"] * 3, "CPU:0", *["CPU:1"] * 2]


def test_an_input_that_fails_does_not_end_an_epoch(pool: WorkerPool) -> None:
    seen = call(pool, "error_of_input", cases="lone_replica_cases")
    assert seen == {"raised": "InvalidArgumentError", "in_a_graph": True, "steps": 10}
