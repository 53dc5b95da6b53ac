"""Tests of the errors: each keeps its fields when it crosses processes, and is the built-in exception that it says."""

import copy
import inspect
import pickle
from pathlib import Path

import pytest

from tests.refusals import refused
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
    with refused(kind, name="epochs", received=value):
        check(value)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "slots"},
        {"received": 2},
        {"path": "/other"},
        {"workers": (1,)},
        {"mentions": ("4 slots",)},
        {"kind": errors.TfdistError},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_refusal_is_told_apart(other):
    fields = {"kind": errors.ConfigError, "name": "workers", "received": 3, "path": "/data", "workers": (0,)}
    with pytest.raises(AssertionError), refused(**{**fields, **other}):
        raise errors.ConfigError("2 slots", name="workers", received=3, path="/data", workers=(0,))
    with refused(**fields, mentions=("2 slots",)):
        raise errors.ConfigError("2 slots", name="workers", received=3, path="/data", workers=(0,))
