"""Cases of the tasks of strategies that cannot be made, which run in a chief with tasks of its own."""

import functools
from typing import Any
from unittest import mock

import parameter_server_cases as cases
import refusal_fields

from tfdist import errors
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.strategies import parameter_server


class _Tasks:
    """Tasks of which one ends at once; all that is done with them is noted."""

    done: list[Any]

    def __init__(self, **counts: int) -> None:
        self.done.append(counts)
        self.cluster = {"chief": ["127.0.0.1:0"], "worker": ["127.0.0.1:1"] * 3, "ps": ["127.0.0.1:1"]}

    def require_running(self) -> None:
        raise errors.TfdistError("ps 0 ended when it was started", name="ps 0")

    def end(self) -> None:
        self.done.append("ended")


def refused() -> list[Any]:
    """Return what is done with tasks, and the names in the errors, of two wrong arguments and of a task that ends."""
    done: list[Any] = []
    _Tasks.done = done
    before = list(parameter_server._local)
    connected = mock.patch.object(tf_servers, "connected_cluster", return_value=None)
    wrong: list[dict[str, Any]] = [{"max_staleness": 0, "backup_workers": 3}, {"max_staleness": 1, "groups": "fast"}]
    with connected, mock.patch.object(parameter_server, "LocalTasks", _Tasks):
        for options in (*wrong, {}):
            met = refusal_fields.met(functools.partial(cases.strategy, **options), errors.TfdistError)
            done.append(met[1])
    assert parameter_server._local == before
    return done
