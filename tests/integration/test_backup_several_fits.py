"""Backups of a script that calls `fit` several times, and what `BackupAndRestore` says to its user."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agents import says
from tests.integration.forks import Forks

CASES = Path(__file__).parent / "cases"
TWO, WORDS = str(CASES / "two_fits.py"), str(CASES / "backup_words.py")
ENDED = 9  # the code of a script that ends in its training


def test_every_fit_goes_on_from_its_own_backup_and_says_so(forking: Forks, tmp_path: Path) -> None:
    def run(*words: str) -> int:
        return forking.run(TWO, str(tmp_path / "result.json"), *(str(tmp_path / word) for word in words))

    def to_the_end(*words: str) -> dict[str, Any]:
        assert run(*words) == 0, forking.output[-3000:]
        return json.loads((tmp_path / "result.json").read_text())

    expected = to_the_end("never 1", "never 2")
    assert (len(expected["losses"]), expected["iterations"]) == (5, 15)

    # in directories of their own: the first has nothing left to train, the second goes on
    assert run("pretraining", "training", "ends") == ENDED, forking.output[-3000:]
    assert to_the_end("pretraining", "training") == expected
    assert says(forking.output, "Nothing is left", str(tmp_path / "pretraining"))
    assert says(forking.output, "step 0 ", "epoch 2 ", str(tmp_path / "training"))
    assert not (tmp_path / "training").exists()

    # in one: an error, and the backup stays; what it advises leads on
    assert run("both", "both", "ends") == ENDED, forking.output[-3000:]
    for _ in range(2):
        assert run("both", "both") == 1
        assert says(forking.output, "ConfigError: ", str(tmp_path / "both"), "fit number 2 ")
    (tmp_path / "both").rename(tmp_path / "moved")
    assert to_the_end("another", "moved") == expected


@pytest.mark.parametrize("case", ["state_that_cannot_be_kept", "storage_options", "going_on", "another_script"])
def test_what_it_says(forking: Forks, tmp_path: Path, case: str) -> None:
    assert forking.run(WORDS, case, str(tmp_path)) == 0, forking.output[-3000:]
