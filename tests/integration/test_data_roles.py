"""Checks by `read`: the results of `decode` and `augment`, and the features in `label`, `inputs` and `weight`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import refused
from tfdist import data
from tfdist.errors import ConfigError, ConfigTypeError, TfdistError

pytestmark = pytest.mark.quick

COUNT = 7
Features = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    x = np.arange(2 * COUNT, dtype="float32").reshape(COUNT, 2)
    data.write({"x": x, "text": ["a b"] * COUNT, "label": np.arange(COUNT)}, place)
    return place


def read(folder: Path, **options: Any) -> data.Reading:
    return data.read(folder, **{"global_batch_size": 4, "order": "none", **options})


def doubled(example: Features) -> Features:
    return {"x": 2 * example["x"], "label": example["label"]}


RETURNS: dict[str, tuple[Callable[[Features], Any], str]] = {
    "a tuple": (lambda e: (e["x"],), "returned a tuple of 1; it must return"),
    "a pair without y": (lambda e: (e["x"], None), "returned None for the feature 'y'"),
    "a list": (lambda e: [e["x"]], "returned a list; it must return"),
    "one tensor": (lambda e: e["x"], "returned one tensor; it must return"),
    "one ragged": (lambda e: tf.RaggedTensor.from_row_lengths(e["x"], [2]), "must return"),
    "None": (lambda e: None, "returned None; .*`return`"),
    "nothing": (lambda e: {}, "without features"),
    "None for one": (lambda e: {**e, "x": None}, "returned None for the feature 'x'"),
    "ragged": (
        lambda e: {**e, "x": tf.RaggedTensor.from_row_lengths(e["x"], [1, 1])},
        r"a RaggedTensor for the feature 'x'.*to_tensor",
    ),
    "ragged text": (lambda e: {**e, "x": tf.strings.split([e["text"]])}, "a RaggedTensor for the feature 'x'"),
    "sparse": (lambda e: {**e, "x": tf.sparse.from_dense(e["x"])}, "a SparseTensor for the feature 'x'.*to_dense"),
    "sparse, deeper": (lambda e: {**e, "x": {"y": tf.sparse.from_dense(e["x"])}}, "a SparseTensor for the feature 'x'"),
    "a dataset": (lambda e: {**e, "x": tf.data.Dataset.range(1)}, "Dataset.* for the feature 'x'"),
    "a name that is none": (lambda e: {1: e["x"]}, "a feature called 1"),
    "without the label": (lambda e: {"x": e["x"]}, "label names the feature 'label'; .* returns 'x'.*Return it too"),
}


@pytest.mark.parametrize(("function", "said"), RETURNS.values(), ids=RETURNS)
def test_what_functions_return_is_looked_at_when_they_are_given(
    folder: Path, function: Callable[[Features], Any], said: str
) -> None:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("decode", {"decode": function}),
        ("decode", {"decode": function, "cache": "memory"}),
        ("augment", {"augment": lambda example, seed: function(example)}),
        (
            "augment",
            {"decode": lambda example: {**example}, "augment": lambda example, seed: function(example), "tail": "keep"},
        ),
    ]
    for name, options in ways:
        with pytest.raises(ConfigError, match=said) as raised:
            read(folder, **options)
        assert name in str(raised.value)


ROLES: dict[str, tuple[dict[str, Any], type[TfdistError], str, object]] = {
    "an unknown label": ({"label": "lable"}, ConfigError, "label", "lable"),
    "an unknown input": ({"inputs": ["x", "z"]}, ConfigError, "inputs", "z"),
    "an unknown weight": ({"weight": "w"}, ConfigError, "weight", "w"),
    "a label twice": ({"label": ["label", "label"]}, ConfigError, "label", ["label", "label"]),
    "an unknown label of several": ({"label": ("label", "lable")}, ConfigError, "label", "lable"),
    "no label of several": ({"label": []}, ConfigError, "label", []),
    "a mapping of labels": ({"label": {"a": "x"}}, ConfigError, "label", {"a": "x"}),
    "several weights": ({"weight": ["x"]}, ConfigTypeError, "weight", ["x"]),
    "a number": ({"label": 3}, ConfigTypeError, "label", 3),
    "no inputs": ({"inputs": None}, ConfigTypeError, "inputs", None),
    "a number among inputs": ({"inputs": ["x", 3]}, ConfigTypeError, "inputs", 3),
    "an empty name": ({"inputs": ""}, ConfigError, "inputs", ""),
}


@pytest.mark.parametrize(("options", "kind", "name", "received"), ROLES.values(), ids=ROLES)
def test_names_of_features_are_looked_at_when_they_are_given(
    folder: Path, options: dict[str, Any], kind: type[TfdistError], name: str, received: object
) -> None:
    augment = {"augment": lambda example, seed: example}
    for functions in ({}, {"decode": doubled}, augment):
        with refused(kind, name=name, received=received):
            read(folder, **options, **functions)


def test_a_weight_needs_a_label_and_must_be_a_number(folder: Path, tmp_path: Path) -> None:
    for functions in ({}, {"decode": lambda example: {**example}}):
        with refused(ConfigError, name="weight", received="text", mentions=("no number",)):
            read(folder, weight="text", **functions)
    data.write({"x": np.zeros((COUNT, 2)), "w": np.ones(COUNT)}, tmp_path)
    with refused(ConfigError, name="weight", received="w", mentions=("without a label",)):
        read(tmp_path, weight="w")


def test_several_labels_are_a_dict_of_one_feature(folder: Path) -> None:
    """The way out that the error names, in whole batches and in the parts that replicas take."""

    def decode(example: Features) -> Features:
        return {"x": example["x"], "label": {"a": example["x"][0], "b": example["label"]}}

    reading = read(folder, decode=decode)
    assert {name: spec.shape for name, spec in reading.element_spec[1].items()} == {"a": (4,), "b": (4,)}
    batches = [(x.numpy(), y["a"].numpy(), y["b"].numpy(), weight.numpy()) for x, y, weight in reading]
    assert np.concatenate([b for _, _, b, _ in batches])[:COUNT].tolist() == list(range(COUNT))
    assert all((x[:, 0] == a).all() for x, a, _, _ in batches)
    reading = read(folder, decode=decode, tail="keep")
    reading.begin()
    found = [int(label) for _, _, parts in reading.share(0, 2, 2) for n, (_, y) in parts for label in y["b"][: int(n)]]
    assert found == list(range(COUNT))


def test_classes_of_texts_and_lists_are_balanced_and_their_prior_is_known(tmp_path: Path) -> None:
    rows = [{"kind": "cat" if n % 10 else "dog", "tags": [0, 2] if n % 4 else [2], "x": n} for n in range(40)]
    schema = {"kind": data.Feature("string"), "tags": data.Feature("int64", (None,)), "x": data.Feature("int64")}
    data.write(rows, tmp_path, schema=data.Schema(schema))
    how: dict[str, Any] = {"global_batch_size": 8, "inputs": "x"}
    train = data.read(tmp_path, label="kind", order="balanced", **how)
    kinds = [kind for _, y, _ in train for kind in y.numpy().tolist()]
    assert (kinds.count(b"cat"), kinds.count(b"dog")) == (20, 20)
    prior = train.prior()
    assert prior.classes == (b"cat", b"dog")
    assert [*prior.true, *prior.seen] == pytest.approx([0.9, 0.1, 0.5, 0.5])
    corrected = tf.nn.softmax(prior.corrected(tf.zeros([1, 2])))
    assert corrected.numpy()[0].tolist() == pytest.approx([0.9, 0.1])
    shares = data.effective_shares(data.stats(tmp_path, label="kind").labels or {}, beta=0.9)
    assert data.read(tmp_path, label="kind", order=shares, **how).prior().seen.tolist() == pytest.approx(
        list(shares.values())
    )
    tags = data.read(tmp_path, label="tags", order="balanced", **how).prior()
    assert (tags.classes, tags.true.tolist(), tags.is_exclusive) == ((0, 1, 2), [0.75, 0.0, 1.0], False)
    both = data.read(tmp_path, label=["kind", "tags"], **how)
    assert both.prior("kind").seen.tolist() == pytest.approx([0.9, 0.1]), "without an order of classes, as they are"
    with refused(ConfigError, name="label", mentions=["'kind', 'tags'"]):
        both.prior()
    half = data.select(tmp_path, numbers=range(1, 40, 2))
    assert data.read(half, label="kind", order="balanced", **how).prior().true.tolist() == [1.0]
    sources = {"all": tmp_path, "half": half}
    prior = data.read(data.mix(sources, weights={"all": 1, "half": 1}, stop="never"), label="kind", **how).prior()
    assert prior.true == pytest.approx([56 / 60, 4 / 60])
    assert prior.seen == pytest.approx([0.95, 0.05])
    moving = data.mix(sources, weights=[(0, {"all": 1, "half": 1}), (9, {"all": 1, "half": 0})], stop="never")
    with refused(ConfigError, name="weights"):
        data.read(moving, label="kind", **how).prior()
    with refused(ConfigError, name="label", received="nothing"):
        train.prior("nothing")
