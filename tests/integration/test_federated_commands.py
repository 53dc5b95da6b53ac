"""`tfdist federated keys`, `server` and `client` as processes: the simulation's weights, through kills and attacks."""

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from tests.federation_strangers import STRANGERS, Target, broken, ends, introduced, raw
from tests.integration.forks import OPTIMIZED, Forks, Heard
from tests.refusals import absent
from tfdist.cli.main import main
from tfdist.cluster import ports
from tfdist.federated import App, SecureSums, WholeRule, simulate
from tfdist.federated.app_file import load_app
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.round_history import ROUNDS, read_rounds
from tfdist.federated.running.federation_client import FederationClient
from tfdist.federated.running.federation_run import common
from tfdist.federated.running.secure_rounds import SecureMember
from tfdist.federated.secure_sums import VectorLayout, code_of
from tfdist.federated.transport.federation_keys import read_client_key, read_federation
from tfdist.federated.transport.server_link import ServerLink

DEADLINE_SECONDS = 240.0
NAMES = ("berlin", "paris")
Started: TypeAlias = "Heard | subprocess.Popen[str]"
APP = """
from contextlib import nullcontext as scope
import numpy as np
from tfdist.federated import App, FedAvg, Participation, SecureSums

def make_model():
    import keras
    keras.utils.set_random_seed(3)
    with scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return model

def data(name):
    x = np.random.default_rng(len(name)).normal(size=(8 + len(name), 4)).astype("float32")
    return x, x[:, 0]

app = App(
    make_model,
    data,
    FedAvg(epochs=2, batch_size=4, most_examples=20),
    clients=("berlin", "paris"),
    participation=Participation(minimum=2),
)
"""


def tfdist(forking: Forks, folder: Path, *arguments: str) -> Heard:
    """Start a command; its graphs are optimized, as those of the simulation here are."""
    return forking.heard("tfdist", "federated", *arguments, cwd=folder, **{OPTIMIZED: "1"})


def as_a_user(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command in a process that has imported nothing."""
    command = [sys.executable, "-m", "tfdist", "federated", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)


@contextlib.contextmanager
def running(commands: Sequence[Started]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in commands:
            if one.poll() is None:
                one.kill()
            one.communicate(timeout=DEADLINE_SECONDS)


def line_with(process: Started, text: str) -> str:
    """The output up to a line with this text."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return "".join(seen)
    raise AssertionError("".join(seen))


def keys_of(folder: Path, *names: str) -> None:
    words = [word for one in names for word in ("--client", one)]
    made = CliRunner().invoke(main, ["federated", "keys", str(folder / "keys"), *words])
    assert made.exit_code == 0, made.output


def require_weights(folder: Path, expected: App, *, rounds: int) -> None:
    """The trained model has the weights of a simulation, bit for bit."""
    found = keras.saving.load_model(folder / "runs" / "federated" / "model.keras").get_weights()
    weights = simulate(expected, rounds=rounds).model.get_weights()
    assert all((one == other).all() for one, other in zip(found, weights, strict=True))
    assert not any(np.isnan(one).any() for one in found)


def test_processes_have_the_weights_of_the_simulation(forking: Forks, tmp_path: Path) -> None:
    """A client is stopped after the first of three rounds, and comes back."""
    (tmp_path / "app.py").write_text(APP)
    keys_of(tmp_path, *NAMES)
    address = f"127.0.0.1:{ports.free_ports(1)[0]}"
    client = ("client", "--server", address, "app.py", "--key")
    server = as_a_user(tmp_path, "server", "--rounds", "3", "--listen", address, "app.py")
    clients = [tfdist(forking, tmp_path, *client, f"keys/{name}.key") for name in NAMES]
    started: list[Started] = [*clients, server]
    with running(started):
        line_with(server, "round 1:")
        clients[0].send_signal(signal.SIGTERM)
        started.append(tfdist(forking, tmp_path, *client, "keys/berlin.key"))
        outputs = [one.communicate(timeout=DEADLINE_SECONDS)[0] for one in started[1:]]
        assert [one.returncode for one in started[1:]] == [0] * 3, outputs
    assert absent(outputs[1], "round 3:", "model.keras") == []
    require_weights(tmp_path, load_app(tmp_path / "app.py"), rounds=3)


def test_a_client_of_two_workers_is_one_client(forking: Forks, tmp_path: Path) -> None:
    """Its workers share each training and evaluation, and wait together for another client."""
    (tmp_path / "plain.py").write_text(APP)
    shared_scope = "import tfdist\nscope = tfdist.strategies.from_environment().scope\n"
    text = APP.replace("minimum=2", 'minimum=2, evaluate_on="clients"')
    (tmp_path / "app.py").write_text(text.replace("from contextlib import nullcontext as scope\n", shared_scope))
    keys_of(tmp_path, *NAMES)
    address = f"127.0.0.1:{ports.free_ports(1)[0]}"
    client = ("client", "--server", address, "app.py", "--key")
    run = ("tfdist", "run", "--strategy", "multi-worker", "-n", "2", "-m", "tfdist", "federated")
    shared = forking.heard(*run, *client, "keys/berlin.key", cwd=tmp_path, **{OPTIMIZED: "1"})
    server = tfdist(forking, tmp_path, "server", "--rounds", "2", "--listen", address, "app.py")
    started: list[Started] = [shared, server]
    with running(started):
        line_with(shared, "connected")
        started.append(tfdist(forking, tmp_path, *client, "keys/paris.key"))
        outputs = [one.communicate(timeout=DEADLINE_SECONDS)[0] for one in started]
        assert [one.returncode for one in started] == [0] * 3, outputs
    found = keras.saving.load_model(tmp_path / "runs" / "federated" / "model.keras").get_weights()
    wanted = simulate(load_app(tmp_path / "plain.py"), rounds=2).model.get_weights()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# --- a server that is attacked, and killed in each phase --------------------------------------------------------------
SUMS = SecureSums(clip=0.02, value_bits=20)
KILLS = {"keys": "configure", "train": "train", "reveal": "aggregate", "evaluate": "evaluate"}  # question -> phase


class Coded(WholeRule):
    """The mean of values as a secure sum has them, made in the open."""

    def __init__(self) -> None:
        self.clipped_values = list[int]()

    def aggregate(self, updates: Any, weights: Any) -> Any:
        layout, code = VectorLayout.of(updates[0].arrays), code_of(SUMS, largest_weight=20, clients=3)
        pairs = [
            code.encode(layout.joined(one.arrays), int(weight)) for one, weight in zip(updates, weights, strict=True)
        ]
        self.clipped_values.append(sum(count for _, count in pairs))
        total = np.sum([words for words, _ in pairs], axis=0, dtype=pairs[0][0].dtype)
        return layout.parts(code.decode(total) / sum(weights))


class Attacked:
    """A server's process, which is killed and started again, and vienna, its client in this process."""

    def __init__(self, forking: Forks, folder: Path, app: App) -> None:
        self.forking, self.folder, self.app = forking, folder, app
        (self.port,) = ports.free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self.federation = read_federation(folder / "keys" / "federation.json")
        self.keys = {name: read_client_key(folder / "keys" / f"{name}.key") for name in self.federation.clients}
        trainer = app.trainer()
        same = common(app, trainer, self.federation, rounds=1, seed=0, sums=SUMS)
        assert same.code is not None
        own = folder / "of-vienna"
        parts = (SUMS, same.code, same.layout, "vienna", self.keys["vienna"].private, self.federation.clients, own)
        self.vienna = FederationClient(app, trainer, "vienna", ClientStates(own), secure=SecureMember(*parts))
        self.target = Target(port=self.port, federation=self.federation, keys=self.keys, largest=same.largest)
        self.started = list[Heard]()
        self.told = ""
        self.begin()

    def begin(self, *options: str) -> None:
        arguments = ("server", "--rounds", "2", "--secure", "--listen", self.address, *options, "app.py")
        self.server = tfdist(self.forking, self.folder, *arguments)
        self.started.append(self.server)

    def kill(self) -> None:
        self.server.kill()
        self.told += self.server.communicate(timeout=DEADLINE_SECONDS)[0]
        self.begin("--resume")

    def link(self) -> ServerLink:
        return ServerLink("127.0.0.1", self.port, self.keys["vienna"], self.federation, largest=self.target.largest)

    def attack(self) -> None:
        """Attack as strangers, as rome, which is on the list but has no task, and as a second berlin."""
        for stranger in STRANGERS:
            stranger(self.target)
        for sent in broken(self.target.largest).values():
            with raw(self.target) as rome:
                assert introduced(self.target, rome, "rome") == {"admitted": "rome"}
                rome.sendall(sent)
                rome.shutdown(socket.SHUT_WR)
                assert ends(rome)
        with raw(self.target) as second:
            assert introduced(self.target, second, "berlin") == {"admitted": "berlin"}
            assert ends(second), "the first has not come back"


def test_a_server_that_is_attacked_and_killed_in_each_phase_has_the_weights_of_the_simulation(
    forking: Forks, tmp_path: Path
) -> None:
    """Updates are under masks, and clipped. Each attack costs its own connection, and each kill nothing."""
    added = f"evaluate_on='clients'), secure=SecureSums(clip={SUMS.clip}, value_bits={SUMS.value_bits})"
    text = APP.replace('"paris")', '"paris", "vienna")').replace("minimum=2)", f"minimum=3, {added}")
    (tmp_path / "app.py").write_text(text)
    keys_of(tmp_path, "berlin", "paris", "vienna", "rome")
    app = load_app(tmp_path / "app.py")
    one, kills, answered = Attacked(forking, tmp_path, app), dict(KILLS), list[dict[str, Any]]()
    with running(one.started), closing(one.link()) as link:
        one.told += line_with(one.server, "vienna is here")
        one.kill()  # while it selects
        client = ("client", "--secure", "--server", one.address, "app.py", "--key")
        clients = [tfdist(forking, tmp_path, *client, f"keys/{name}.key") for name in NAMES]
        one.started += clients
        while True:
            message = link.take(DEADLINE_SECONDS)
            assert message is not None, f"nothing is asked; kills left: {kills}"
            if message["kind"] == "end":
                break
            if message["what"] == "train" and "train" in kills:
                one.attack()
            if kills.pop(message["what"], None):
                one.kill()
            else:
                answered.append(one.vienna.answer(message))
                for answer in (answered[0], answered[-1], answered[-1]):  # of before, and twice
                    link.send(answer)
        outputs = [each.communicate(timeout=DEADLINE_SECONDS)[0] for each in one.started if each.returncode is None]
        assert [each.returncode for each in (one.server, *clients)] == [0] * 3, outputs
    assert (message["error"], kills) == ("", {})
    assert one.told.count("refused 127.0.0.1") >= 10 + len(broken(one.target.largest)), one.told
    assert "rome is gone" not in one.told, "it has no part in the run"
    rule = Coded()
    require_weights(tmp_path, replace(app, secure=None, aggregator=rule), rounds=2)
    records = read_rounds(tmp_path / "runs" / "federated" / ROUNDS)
    assert [(each.used, each.clipped_values) for each in records] == [(3, count) for count in rule.clipped_values]
    assert min(rule.clipped_values) > 0
    assert absent(outputs[-1], f"values clipped: {rule.clipped_values[1]}") == []


def test_keys_are_made_where_they_are_used(tmp_path: Path) -> None:
    """A client makes its own key, and the server lists its public part."""
    run = CliRunner()
    own = run.invoke(main, ["federated", "keys", str(tmp_path / "mine"), "--own", "berlin"])
    assert own.exit_code == 0
    add = own.output.split("--add ")[1].strip()
    listed = run.invoke(main, ["federated", "keys", str(tmp_path), "--add", add, "--client", "paris"])
    assert absent(listed.output, "2 clients") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["federation.json", "mine", "paris.key", "server.key"]


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
