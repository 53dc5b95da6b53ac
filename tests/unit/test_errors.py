"""Tests of the errors: each keeps its fields when it crosses processes, and is the built-in exception that it says."""

import copy
import inspect
import pickle
from pathlib import Path

import pytest

from tfdist import errors
from tfdist.validation import integer, one_of, text

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TfdistError)]


def through_a_pipe(error):
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - its own


SPECIAL = errors.WorkerFailedError  # takes the one worker that failed first


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SPECIAL])
@pytest.mark.parametrize("across", [through_a_pipe, copy.copy], ids=["pickle", "copy"])
def test_keeps_its_fields_across_processes(kind, across):
    error = across(kind("no room", name="slots", received=3, path=Path("/data"), workers=(2, 0)))
    assert type(error) is kind
    assert str(error) == "no room"
    assert (error.name, error.received, error.path, error.workers) == ("slots", "3", "/data", (0, 2))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SPECIAL])
def test_fields_that_do_not_apply_are_empty(kind):
    error = kind("no room")
    assert (error.name, error.received, error.path, error.workers) == (None, None, None, ())


def test_failed_worker_is_one_of_the_workers():
    error = through_a_pipe(SPECIAL("worker 2 failed", worker=2, exit_code=9))
    assert (error.worker, error.workers, error.exit_code) == (2, (2,), 9)


def test_what_is_received_is_text_even_where_it_is_none():
    assert errors.ConfigError("x", received=None).received == "None"
    assert errors.ConfigError("x", received="None").received == "None"


@pytest.mark.parametrize(
    ("check", "value", "kind"),
    [
        (lambda value: integer("epochs", value, minimum=1), 0, errors.ConfigError),
        (lambda value: integer("epochs", value), "3", errors.ConfigTypeError),
        (lambda value: text("epochs", value), 7, errors.ConfigTypeError),
        (lambda value: one_of("epochs", value, ("a", "b")), None, errors.ConfigError),
    ],
)
def test_checks_fill_the_fields(check, value, kind):
    with pytest.raises(kind) as caught:
        check(value)
    assert type(caught.value) is kind
    assert caught.value.name == "epochs"
    assert caught.value.received in (value, repr(value))
