"""Clients that lie: what they send, who they are, and a drill whose outcome is known."""

from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.federated import Liars, Mean, Median, Update
from tfdist.federated.clients.client_data import LocalArrays, LocalDataset
from tfdist.federated.robust import lying_clients
from tfdist.federated.robust.lying_clients import ATTACKS, Deceived, Lie, among, read, taught

HONEST = [{"w": np.array([1.0, 0.0]), "b": np.array([1.0])}, {"w": np.array([3.0, 0.5]), "b": np.array([1.0])}]
OWN = [{"w": np.array([2.0, -4.0]), "b": np.array([0.5])}] * 2


def sent(liars: Liars, honest: Any = HONEST) -> list[list[float]]:
    return [[*one["w"], *one["b"]] for one in lying_clients.lies(liars, honest, OWN)]


@pytest.mark.parametrize(
    ("liars", "wanted"),
    [
        (Liars(0.5, "sign-flip"), [-2, 4, -0.5]),
        (Liars(0.5, "sign-flip", 10), [-20, 40, -5]),
        (Liars(0.5, "alie", 2), [2 - 2 * 1, 0.25 - 2 * 0.25, 1]),
        (Liars(0.5, "ipm"), [-1, -0.125, -0.5]),
        (Liars(0.5, "label-flip"), [2, -4, 0.5]),
    ],
)
def test_attacks_follow_their_formulas(liars: Liars, wanted: list[float]) -> None:
    assert sent(liars) == [wanted] * 2


def test_mimics_repeat_the_client_that_differs_most() -> None:
    values = [0.0, 0.2, 9.0, -0.1]
    honest = [{"w": np.array([value, 0.01 * value**2]), "b": np.zeros(1)} for value in values]
    assert sent(Liars(0.5, "mimic"), honest)[0][0] == 9.0


@pytest.mark.parametrize("attack", ATTACKS)
def test_liars_among_themselves_have_something_to_send(attack: Any) -> None:
    assert np.isfinite(sent(Liars(1.0, attack), [])).all()


def test_lies_take_the_places_of_liars_and_keep_their_weights() -> None:
    aggregation = Deceived(Mean().start(), Liars(0.5, "sign-flip"))
    for update, weight in ((Lie({"w": np.ones(1)}, 5), 3.0), (Update({"w": np.full(1, 5.0)}, 5), 1.0)):
        aggregation.add(update, weight)
    assert aggregation.result()["w"].item() == (-3 + 5) / 4
    drill = Deceived(Median(liars=1).start(), Liars(0.3, "sign-flip", 100))
    for update in (Update({"w": np.ones(1)}, 5), Update({"w": np.full(1, 2.0)}, 5), Lie({"w": np.ones(1)}, 5)):
        drill.add(update, 1.0)
    assert drill.result()["w"].item() == 1.0


def test_the_same_clients_lie_each_time_whatever_their_order() -> None:
    names = [str(one) for one in range(40)]
    found = among(Liars(0.2, "alie"), names)
    assert len(found) == 8
    assert found == among(Liars(0.2, "ipm"), names[::-1])


@pytest.mark.parametrize(
    ("labels", "outputs", "wanted"),
    [
        ([0, 3, 9], (None, 10), [9, 6, 0]),
        ([[0.0], [1.0]], (None, 1), [[1.0], [0.0]]),
        ([[1, 0, 0]], (None, 3), [[0, 0, 1]]),
    ],
)
def test_labels_are_flipped(labels: Any, outputs: Any, wanted: Any) -> None:
    data = LocalArrays((np.zeros((len(labels), 2)), np.array(labels)), len(labels))
    flipped = taught(Liars(0.1, "label-flip"), data, outputs)
    assert isinstance(flipped, LocalArrays)
    assert flipped.nest[1].tolist() == wanted
    assert taught(Liars(0.1, "alie"), data, outputs) is data


def test_what_makes_no_sense_is_refused() -> None:
    assert read("0.25:ipm:2") == Liars(0.25, "ipm", 2.0)
    for text, name in (
        ("alie", "liars"),
        ("0.2", "liars"),
        ("x:alie", "liars"),
        ("0.2:alie:1:1", "liars"),
        ("0.2:lie", "attack"),
        ("0:alie", "part"),
        ("1.5:alie", "part"),
        ("0.2:mimic:3", "strength"),
        ("0.2:alie:-1", "strength"),
    ):
        with refused(ConfigError, name=name):
            read(text)
    for data, outputs in (
        (LocalDataset(lambda size, seed: None, 3), (None, 2)),
        (LocalArrays((np.zeros((1, 1)), {"a": np.zeros(1)}), 1), (None, 2)),
        (LocalArrays((np.zeros((1, 1)), np.zeros(1)), 1), [(None, 2), (None, 2)]),
    ):
        with refused(ConfigError, name="attack"):
            taught(Liars(0.2, "label-flip"), data, outputs)
