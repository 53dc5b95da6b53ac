"""The functions that a notebook sends to its workers, and the output of its cell, without a process."""

import contextlib
import functools
import io
import linecache
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tfdist.errors import UnsupportedError
from tfdist.jobs.notebooks.cell_output import CellOutput, output
from tfdist.jobs.notebooks.function_transfer import (
    name_of,
    receive_function,
    receive_result,
    send_function,
    send_result,
)

LOCK = threading.Lock()


def closure_of(value: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return value

    return inner


def made_in_main(source: str, **variables: Any) -> Callable[..., Any]:
    """A function as a cell makes it: of the module __main__, with variables of its own."""
    scope: dict[str, Any] = {"__name__": "__main__", **variables}
    exec(compile(source, "<cell>", "exec"), scope)  # noqa: S102 - as a kernel does
    return scope["f"]  # type: ignore[no-any-return]


def test_a_function_its_variables_and_its_lines_arrive(tmp_path: Path) -> None:
    path = tmp_path / "code"
    linecache.cache["<cell>"] = (1, None, ["the line\n"], "<cell>")
    try:
        send_function(path, made_in_main("def f(x): return helper(x)", helper=closure_of(7)), (1,))
        del linecache.cache["<cell>"]
        function, arguments = receive_function(path)
        assert linecache.getline("<cell>", 1) == "the line\n"
    finally:
        linecache.cache.pop("<cell>", None)
    assert (function.__module__, arguments) == ("__main__", (1,))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_already_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "code").touch()
    with pytest.raises(FileExistsError):
        send_function(tmp_path / "code", print, ())


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (made_in_main("def f(): return lock", lock=LOCK), (), "the variable 'lock'"),
        (made_in_main("def f():\n return [lock for _ in ()]", lock=LOCK), (), "the variable 'lock'"),
        (closure_of({"a": [1, LOCK]}), (), "the variable 'value'['a'][1]"),
        (made_in_main("def f(): return g()", g=closure_of(LOCK)), (), "the variable 'value' of the function inner"),
        (made_in_main("def f(x, y): pass"), (1, LOCK), "the argument 'y'"),
        (functools.partial(made_in_main("def f(y): pass"), y=LOCK), (), "the argument 'y' of partial()"),
        (LOCK.acquire, (), "lock.acquire"),
    ],
)
def test_what_cannot_be_sent_is_named(
    function: Callable[..., Any], arguments: tuple[Any, ...], name: str, tmp_path: Path
) -> None:
    with refused(UnsupportedError, name=name, mentions=["inside"]):
        send_function(tmp_path / "code", function, arguments)


def test_a_result_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "result"
    send_result(path, {"loss": [1.0]}, of="train")
    assert receive_result(path) == {"loss": [1.0]}
    assert os.listdir(tmp_path) == ["result"]
    with refused(UnsupportedError, name="the result['b'][0] of train", mentions=["of type _thread.lock"]):
        send_result(tmp_path / "other", {"a": 1, "b": [LOCK]}, of="train")
    assert not (tmp_path / "other").exists()


def test_names() -> None:
    assert name_of(functools.partial(functools.partial(closure_of, 1))) == "closure_of"
    assert name_of(functools.lru_cache(closure_of)) == "closure_of"
    assert name_of(CellOutput(["a"], write=print)) == "CellOutput"  # type: ignore[arg-type]


def test_a_cell_shows_lines_words_and_one_living_line() -> None:
    written: list[tuple[int, str]] = []
    states: list[str] = []
    out = CellOutput(["chief", "ps 0"], write=lambda *what: written.append(what), show=states.append)
    out.living(1, 0, b"50 %")
    out.living(1, 0, b"50 %")
    out.lines(2, 1, [b"one", b"two \xff"])
    out.living(1, 0, b"")
    out.message("tfdist: a worker failed", give_up=lambda: True)
    assert written == [(2, "[ps 0] one\n[ps 0] two \N{REPLACEMENT CHARACTER}\n"), (2, "tfdist: a worker failed\n")]
    assert states == ["[chief] 50 %", ""]
    assert out.said == ["a worker failed"]


@pytest.mark.parametrize(
    ("stream", "shown"), [(io.StringIO(), "ü ━"), (io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), "ü \\u2501")]
)
def test_a_stream_without_a_letter_shows_its_number(stream: io.TextIOBase, shown: str) -> None:
    with contextlib.redirect_stdout(stream):  # type: ignore[type-var]
        out = output(["worker 0"])
    out.lines(1, 0, ["ü ━".encode()])
    assert not out.closed.is_set()
    stream.seek(0)
    assert stream.read() == f"{shown}\n"


def test_a_stream_that_is_closed_is_told() -> None:
    def write(stream: int, text: str) -> None:
        raise ValueError("I/O operation on closed file")

    out = CellOutput(["worker 0"], write=write)
    assert not out.closed.is_set()
    out.lines(1, 0, [b"one"])
    assert out.closed.is_set()
