"""A warm process keeps no descriptor of a client that is gone, and its keeper survives a lack of descriptors."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfdist.processes import forking, warm_server

SECONDS = 60.0
NOTHING: Any = SimpleNamespace(changed=lambda: "")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm processes need Linux")


def descriptors() -> set[str]:
    return {one for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}")}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_client_that_does_not_wait_for_its_answer_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, open(os.devnull, "rb") as given:
        server.bind(str(tmp_path / "s"))
        server.listen()
        for ask in (warm_server.TELL, warm_server.TELL, warm_server.END):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "s"))
                warm_server.send(client, {"ask": ask}, (given.fileno(),))
        before = descriptors()
        serving = threading.Thread(target=warm_server._serve, args=(server, NOTHING, {}, 0.5), daemon=True)
        serving.start()
        serving.join(SECONDS)
        assert not serving.is_alive()
        assert descriptors() == before


def test_half_a_request_leaves_no_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    with open(os.devnull, "rb") as given:
        socket.send_fds(here, [forking.NUMBER.pack(100)], [given.fileno()])
    here.sendall(b"half")
    here.shutdown(socket.SHUT_WR)
    before = descriptors()
    assert forking.receive(there) == (None, [])
    assert descriptors() == before


def test_a_keeper_tells_a_lack_of_descriptors_from_the_end_of_its_agent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    agent, connection = pair
    keeper = warm_server._Keeper(connection, NOTHING, NOTHING)
    agent.sendall(forking.READY)  # the kernel drops a descriptor for which the keeper has no room
    assert keeper._asked() == []
    agent.shutdown(socket.SHUT_WR)
    assert keeper._asked() is None


def test_a_worker_whose_end_could_not_be_seen_is_ended(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    keeper = warm_server._Keeper(pair[1], NOTHING, NOTHING)
    here, there = socket.socketpair()
    with here, subprocess.Popen(["sleep", "60"]) as worker:
        monkeypatch.setattr(os, "fork", lambda: worker.pid)
        monkeypatch.setattr(os, "pidfd_open", fail)
        try:
            assert not keeper._forked(there)
            here.settimeout(SECONDS)
            assert here.recv(forking.NUMBER.size) == b""  # no number, which would be taken for an exit code
            with pytest.raises(ProcessLookupError):
                os.kill(worker.pid, 0)
        finally:
            worker.kill()
