"""Messages over pipes, whole or in parts, and the environments of workers."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.cluster import from_environment
from tfdist.processes.pool import pool_channel
from tfdist.testing.pool import worker_environments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(VALUES, max_size=4), st.data())
def test_messages_survive_any_cutting(messages: list[object], data: st.DataObject) -> None:
    stream = b"".join(pool_channel.pack(message) for message in messages)
    mailbox, read = pool_channel.Mailbox(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        read += mailbox.put(stream[:size])
        stream = stream[size:]
    assert read == messages


def test_a_pipe_carries_messages_until_it_is_closed() -> None:
    reader, writer = os.pipe()
    try:
        pool_channel.write(writer, {"a": "ü"})
        pool_channel.write(writer, [1])
        assert [pool_channel.read(reader), pool_channel.read(reader)] == [{"a": "ü"}, [1]]
    finally:
        os.close(writer)
    with pytest.raises(EOFError):
        pool_channel.read(reader)
    os.close(reader)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="numbers, texts, lists"):
        pool_channel.pack({"a": object()})


def test_workers_find_themselves_in_their_environment() -> None:
    base = {"HOME": "/h", "TF_CONFIG": "of an outer job", "TFDIST_STRATEGY": "old", "SLURM_PROCID": "7"}
    made = worker_environments(base, strategy="multi-worker", ports=[7001, 7002], replicas_per_worker=2)
    clusters = [from_environment(environment) for environment in made]
    assert [(c.worker_index, c.num_workers, c.is_chief) for c in clusters] == [(0, 2, True), (1, 2, False)]
    assert [json.loads(environment["TF_CONFIG"])["task"]["index"] for environment in made] == [0, 1]
    for environment in made:
        assert environment["HOME"] == "/h"
        assert environment["TFDIST_STRATEGY"] == "multi-worker"
        assert environment["TFDIST_REPLICAS_PER_WORKER"] == "2"
        assert "SLURM_PROCID" not in environment


def test_a_worker_on_its_own_is_in_no_cluster() -> None:
    (environment,) = worker_environments({"TF_CONFIG": "x"}, strategy="mirrored", ports=[7001], replicas_per_worker=3)
    assert "TF_CONFIG" not in environment
    assert from_environment(environment).num_workers == 1
