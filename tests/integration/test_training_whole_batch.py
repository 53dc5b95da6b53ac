"""States, losses and metrics that depend on a whole batch: those of one device, or said by name."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import case_pools
from tests.integration.case_pools import start
from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tfdist.testing.pool import WorkerPool

call = functools.partial(case_pools.call_one, of="batch_wide_cases")
RIGHT = (
    "states",
    "a codebook",
    "losses of layers",
    "losses of layers, eagerly",
    "dice of Keras",
    "tversky of Keras",
    "a loss with a mask",
    "a loss that compares",
    "a similarity over rows",
    "a layer of ones own",
    "metrics",
)


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    """Three replicas, of which the last batch leaves two without examples."""
    with start(forking, "mirrored", replicas=3) as workers:
        yield workers


@pytest.mark.parametrize("name", RIGHT)
def test_what_depends_on_the_whole_batch_is_that_of_one_device(pool: WorkerPool, name: str) -> None:
    assert call(pool, "differences", name=name) == {"wrong": {}, "said": [], "unequal": []}


@pytest.mark.parametrize(
    "name",
    [
        *("queue/kept", "wrapping/kept", "balances", "deviation", "over_rows", "mean", "peak", "kernel"),
        "the layer 'own_rows' (",
    ],
)
def test_what_cannot_be_right_is_said_once_by_the_user_s_name(pool: WorkerPool, name: str) -> None:
    (sentence,) = call(pool, "sentences", name=name)
    assert name in sentence


def test_the_hardest_examples_of_a_batch_are_those_of_one_device_or_said(pool: WorkerPool) -> None:
    seen = call(pool, "hard_examples", of="hard_example_cases")
    assert seen["apart"] < 1e-5
    assert seen["said"] == []
    (sentence,) = seen["in a step"]
    assert "Hardest.train_step" in sentence
    assert "all_gather" in sentence
    (sentence,) = call(pool, "said_of_a_fixed_batch", of="hard_example_cases")
    assert "tf.shape" in sentence


def test_a_layer_that_compares_rows_is_said_of_a_model_that_is_only_evaluated(pool: WorkerPool) -> None:
    (sentence,) = call(pool, "said_of_an_evaluation")
    assert "'centring'" in sentence


def test_a_layer_that_compares_rows_is_said_once_of_a_model_that_only_predicts(pool: WorkerPool) -> None:
    seen = call(pool, "said_of_predictions", of="prediction_cases")
    (sentence,) = seen["centring"]
    assert "'centring'" in sentence
    (sentence,) = seen["ranks"]
    assert "'Predicting.predict_step'" in sentence
    (sentence,) = seen["texts"]
    assert "'words'" in sentence
    assert [seen[name] for name in ("rows apart", "largest", "texts of one length")] == [[], [], []]


def test_a_step_that_cannot_be_tried_is_told_without_the_text_of_tensorflow(pool: WorkerPool) -> None:
    (sentence,) = call(pool, "said_of_a_condition")
    assert "inside a condition" in sentence
    assert "Tensor" not in sentence.replace("TensorFlow", "")


def test_a_layer_with_a_state_for_each_row_is_refused_by_name(pool: WorkerPool) -> None:
    refused = call(pool, "stateful_layer")
    assert set(refused) == {"fit", "evaluate"}
    assert all("gru" in said for said in refused.values()), refused


def test_a_graph_says_how_a_state_depends_on_what_it_was(pool: WorkerPool) -> None:
    assert call(pool, "found", of="dependence_cases") == {
        "counted": ["added", None],
        "subtracted": ["added", None],
        "new": ["none", None],
        "decayed": ["scaled", [0.9]],
        "moved": ["scaled", [0.75]],
        "decayed by the batch": ["other", None],
        "largest": ["selected", None],
        "smallest, chosen": ["selected", None],
        "begun anew": ["other", None],
        "squared": ["other", None],
        "in a row": ["other", None],
        "at places": ["replaced", None],
        "added at places": ["added", None],
        "kept": ["added", None],
    }


def require_the_numbers_of_one_device(seen: dict[str, Any]) -> None:
    for name, run in seen.items():
        assert run["apart"] < 1e-5, name
        assert run["said"] == [], name


def test_candidates_of_all_replicas_are_those_of_one_device(pool: WorkerPool) -> None:
    require_the_numbers_of_one_device(call(pool, "contrast", of="own_gradient_cases"))


def test_a_step_that_uses_its_own_gradients_is_named_once_with_the_way_out(pool: WorkerPool) -> None:
    seen = call(pool, "what_is_said", of="own_gradient_cases")
    assert seen.pop("centred") == seen.pop("scaled") == seen.pop("late") == []
    for name, said in seen.items():
        (sentence,) = said
        assert "Own.train_step" in sentence, name
        assert "global_clipnorm=" in sentence, name
        assert "tfdist.training.reduced_gradients" in sentence, name


def test_reduced_gradients_are_those_of_one_device(pool: WorkerPool) -> None:
    require_the_numbers_of_one_device(call(pool, "reduced", of="own_gradient_cases"))


def test_decisions_by_the_loss_are_those_of_one_device_if_it_is_that_of_all(pool: WorkerPool) -> None:
    seen = call(pool, "decisions", of="own_gradient_cases")
    require_the_numbers_of_one_device({"of all": seen["of all"]})
    assert seen["of all, in a condition"] < 1e-5
    (sentence,) = seen["own"]
    assert "Own.train_step" in sentence
    assert "all_reduce" in sentence
    assert refusal_fields.are(seen["own, in a condition"], "UnsupportedError", ..., "Less")


def test_a_table_whose_rows_cannot_be_told_apart_eagerly_is_named_once(pool: WorkerPool) -> None:
    seen = call(pool, "rows_that_are_said", of="own_gradient_cases")
    (sentence,) = seen.pop("eagerly")
    assert "looked_up/embeddings'" in sentence
    assert seen == {"eagerly, added up": [], "traced": []}


def test_gradients_that_cannot_be_reduced_in_a_step_are_refused(pool: WorkerPool) -> None:
    seen = call(pool, "refusals", of="own_gradient_cases")
    assert set(seen.values()) == {"UnsupportedError"}, seen


def test_losses_of_two_outputs_that_need_the_whole_batch_are_those_of_one_device(pool: WorkerPool) -> None:
    seen = call(pool, "two_outputs", of="hard_example_cases")
    assert seen["apart"] < 1e-5
    assert seen["said"] == []
