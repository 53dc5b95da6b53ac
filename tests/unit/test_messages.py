"""The messages that users meet most read as tests/goldens/messages.txt has them: the one place where words are held."""

import re
from pathlib import Path

from tests.goldens import texts
from tests.goldens.messages import MESSAGES, messages

KEPT = (texts.FOLDER / "messages.txt").read_text(encoding="utf-8")


def test_messages_are_those_of_the_golden_text() -> None:
    changed = texts.changes("messages.txt")
    assert not changed, f"tfdist says something else; read it as a user would, then run `make goldens`:\n{changed}"


def test_they_say_the_same_anywhere(tmp_path: Path) -> None:
    assert str(tmp_path) not in KEPT
    assert re.findall(r"/(?:tmp|home|work|root)/\S*", KEPT) == []
    assert messages() == KEPT  # from another directory, and for the second time


def test_every_one_has_a_message_of_its_own() -> None:
    said = re.findall(r"^\S.*\n((?:  .*\n)+)", KEPT, re.MULTILINE)
    assert len(set(said)) == len(MESSAGES) >= 60
