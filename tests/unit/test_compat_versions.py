"""The table of pairs of TensorFlow and Keras, and what is said about an installed one."""

import re
from pathlib import Path

import pytest

from tfdist.compat import version_pairs
from tfdist.compat.version_pairs import MAIN, TESTED, Standing, judge

SETUP = (Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("pair", TESTED, ids=str)
def test_every_pair_of_the_table_is_tested_and_in_range(pair: version_pairs.Pair) -> None:
    assert judge(pair.tensorflow, pair.keras).standing is Standing.TESTED


def test_the_table_begins_with_the_main_pair_and_names_each_once() -> None:
    assert TESTED[0] == MAIN
    assert len(set(TESTED)) == len(TESTED)


@pytest.mark.parametrize(
    ("tensorflow", "keras", "standing"),
    [
        ("2.21.0+nv25.1", "3.15.1", Standing.TESTED),
        ("2.21.99", "3.15.1", Standing.UNTESTED),
        ("2.21.0rc1", "3.15.1", Standing.UNTESTED),
        ("2.21.0", "3.15.99", Standing.UNTESTED),
        ("2.16.1", "3.15.1", Standing.OUT_OF_RANGE),
        ("2.22.0", "3.15.1", Standing.UNTESTED),
        ("2.22.0-rc0", "3.15.1", Standing.TESTED),
        ("2.23.0", "3.15.1", Standing.OUT_OF_RANGE),
        ("2.23.0rc0", "3.15.1", Standing.OUT_OF_RANGE),
        ("2.21.0", "3.14.0", Standing.OUT_OF_RANGE),
        ("2.21.0", "3.16.0", Standing.OUT_OF_RANGE),
        ("2.21.0", "", Standing.OUT_OF_RANGE),
        ("git-master", "3.15.1", Standing.OUT_OF_RANGE),
    ],
)
def test_a_pair_is_judged(tensorflow: str, keras: str, standing: Standing) -> None:
    found = judge(tensorflow, keras)
    assert found.standing is standing
    assert found.pair == version_pairs.Pair(tensorflow, keras)
    assert f"TensorFlow {tensorflow} with Keras {keras}" in found.text


def test_what_was_not_tested_is_told_the_tested_pairs_and_their_page() -> None:
    text = judge("2.21.77", MAIN.keras).text
    assert all(pair.tensorflow in text and pair.keras in text for pair in TESTED)
    assert text.count(MAIN.keras) < len(TESTED)  # a line, not a list
    assert "docs/compatibility.md" in text


def test_what_is_out_of_range_is_told_the_range() -> None:
    text = judge("2.15.0", "2.15.0").text
    assert version_pairs.TENSORFLOW in text
    assert version_pairs.KERAS in text


def test_setup_asks_for_the_same_range() -> None:
    tensorflow = re.search(r'^TENSORFLOW = "(.+)"$', SETUP, re.MULTILINE)
    keras = re.search(r'"keras([^"]+)"', SETUP)
    assert tensorflow is not None
    assert keras is not None
    assert (tensorflow[1], keras[1]) == (version_pairs.TENSORFLOW, version_pairs.KERAS)
