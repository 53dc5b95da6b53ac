"""`tfdist federated keys`, `server` and `client` as processes: the weights of the simulation, through a kill."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from tests.refusals import absent, refused
from tfdist.cli.federated import command as federated_command
from tfdist.cli.main import main
from tfdist.cluster import ports
from tfdist.errors import ConfigError
from tfdist.federated import simulate
from tfdist.federated.app_file import load_app

DEADLINE_SECONDS = 240.0
NAMES = ("berlin", "paris")
APP = """
import numpy as np
from tfdist.federated import App, FedAvg

def make_model():
    import keras
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model

def data(name):
    x = np.random.default_rng(len(name)).normal(size=(8 + len(name), 4)).astype("float32")
    return x, x[:, 0]

app = App(make_model, data, FedAvg(epochs=2, batch_size=4, most_examples=20), clients=("berlin", "paris"))
"""


def tfdist(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tfdist", "federated", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)


@contextlib.contextmanager
def running(commands: Sequence["subprocess.Popen[str]"]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in commands:
            if one.poll() is None:
                one.kill()
            one.communicate(timeout=DEADLINE_SECONDS)


def line_with(process: "subprocess.Popen[str]", text: str) -> str:
    """The output up to a line with this text."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return "".join(seen)
    raise AssertionError("".join(seen))


def test_processes_have_the_weights_of_the_simulation_through_a_kill(tmp_path: Path) -> None:
    """The server is killed in the second of four rounds, and a client is stopped; both come back."""
    (tmp_path / "app.py").write_text(APP)
    made = CliRunner().invoke(
        main, ["federated", "keys", str(tmp_path / "keys"), *(word for one in NAMES for word in ("--client", one))]
    )
    assert made.exit_code == 0, made.output
    address = f"127.0.0.1:{ports.free_ports(1)[0]}"
    server = ("server", "--rounds", "4", "--listen", address, "app.py")
    client = ("client", "--server", address, "app.py", "--key")
    first = tfdist(tmp_path, *server)
    clients = [tfdist(tmp_path, *client, f"keys/{name}.key") for name in NAMES]
    started = [first, *clients]
    with running(started):
        line_with(first, "round 1:")
        first.kill()
        clients[0].send_signal(signal.SIGTERM)
        started.append(tfdist(tmp_path, *server, "--resume"))
        started.append(tfdist(tmp_path, *client, "keys/berlin.key"))
        outputs = [one.communicate(timeout=DEADLINE_SECONDS)[0] for one in started[2:]]
        assert [one.returncode for one in started[2:]] == [0] * 3, outputs
    assert absent(outputs[1], "round 2:", "round 3:", "round 4:", "model.keras") == []
    found = keras.saving.load_model(tmp_path / "runs" / "federated" / "model.keras").get_weights()
    expected = simulate(load_app(tmp_path / "app.py"), rounds=4).model.get_weights()
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))
    assert not any(np.isnan(one).any() for one in found)


def test_keys_are_made_where_they_are_used(tmp_path: Path) -> None:
    """A client makes its own key, and the server lists its public part."""
    run = CliRunner()
    own = run.invoke(main, ["federated", "keys", str(tmp_path / "mine"), "--own", "berlin"])
    assert own.exit_code == 0
    add = own.output.split("--add ")[1].strip()
    listed = run.invoke(main, ["federated", "keys", str(tmp_path), "--add", add, "--client", "paris"])
    assert absent(listed.output, "2 clients") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["federation.json", "mine", "paris.key", "server.key"]


def test_a_client_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TFDIST_WORKERS", "a:1,b:1"), ("TFDIST_WORKER_INDEX", "1")):
        monkeypatch.setenv(name, value)
    arguments = ["client", "--server", "127.0.0.1:1", "--key", "paris.key", "app.py"]
    with refused(ConfigError, name="workers", received=2):
        CliRunner().invoke(federated_command, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["keys", "keys", "--client", "../x"],
        ["keys", "keys", "--add", "berlin"],
        ["keys", "keys", "--add", "berlin=xyz"],
        ["keys", "keys", "--add", "berlin=00"],
        ["keys", "keys", "--own", "berlin", "--client", "paris"],
        ["server", "--listen", "here", "app.py"],
        ["client", "--server", "here", "--key", "x.key", "app.py"],
    ],
)
def test_wrong_requests_exit_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["federated", *arguments]).exit_code == 2
    assert not list(Path().iterdir())
