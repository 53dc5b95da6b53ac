"""Every implementation of `Collective`, by one battery: all operations, dtypes and shapes, and what happens when a
member goes. A new implementation is a line in `cases/collective_makers.py`."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration import case_pools
from tests.integration.agents import alive, says, wait_until
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.pool import WorkerPool, worker_environments

CASES = Path(__file__).parent / "cases"
DEADLINE_SECONDS = 800

sys.path.insert(0, str(CASES))
try:
    from collective_makers import MAKERS, hosts
finally:
    sys.path.remove(str(CASES))


@dataclass(frozen=True)
class Members:
    """Processes that have the collectives of one implementation."""

    name: str
    count: int
    groups: tuple[tuple[int, ...], ...]
    pool: WorkerPool

    def call(self, function: str, **arguments: Any) -> list[Any]:
        given = {"name": self.name, "groups": self.groups, **arguments}
        module, _, name = function.rpartition(":")
        if self.in_one_process:
            given = {"function": name, "count": self.count, "given": given}
            name = "of_replicas"
        answers = self.pool.call(f"{module or 'collective_cases'}:{name}", given, timeout_seconds=DEADLINE_SECONDS)
        values = case_pools.returned(answers)
        return list(values[0]) if self.in_one_process else values

    @property
    def in_one_process(self) -> bool:
        """Whether the members are replicas of one process."""
        return self.name.endswith("_in_one_process")


@contextlib.contextmanager
def started(forking: Forks, name: str, count: int, groups: tuple[tuple[int, ...], ...]) -> Iterator[Members]:
    """Start processes that have the collectives of one implementation."""

    def environments() -> list[dict[str, str]]:
        free = ports.free_ports(1 if name.endswith("_in_one_process") else count)
        made = worker_environments(forking.environment, strategy=MAKERS[name][1], ports=free, replicas_per_worker=1)
        return [environment | {"PYTHONPATH": python_path(CASES)} for environment in made]

    with WorkerPool(environments, start=forking.worker) as pool:
        pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the processes
        yield Members(name, count, groups, pool)


GROUPS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((0,),),
    2: (),
    3: ((0, 1), (1, 2), (0, 2)),
    4: ((0, 1, 3), (0, 2)),
}


@pytest.fixture(
    scope="module", params=[f"{name}-{count}" for name, (_, _, counts) in MAKERS.items() for count in counts]
)
def members(request: pytest.FixtureRequest, forking: Forks) -> Iterator[Members]:
    name, _, number = request.param.partition("-")
    groups = GROUPS[int(number)]
    with started(forking, name, int(number), groups) as found:
        yield found


def test_every_operation_dtype_and_shape(members: Members) -> None:
    wrong = members.call("operations", group=None, traced=True) + members.call("operations", group=None, traced=False)
    assert [one for those in wrong for one in those] == []


def test_numbers_of_16_bits_are_added_in_float32(members: Members) -> None:
    assert [one for those in members.call("halves") for one in those] == []


def test_groups_that_overlap(members: Members) -> None:
    for group, ranks in enumerate(members.groups):
        assert [one for those in members.call("operations", group=group, traced=True) for one in those] == []
        digests = members.call("digest_of_sums", group=group)
        assert len({digests[worker] for worker in ranks}) == 1
        on = [hosts(members.name, members.count)[rank] for rank in ranks]
        assert [who for who in members.call("who", group=group) if who is not None] == [
            [len(ranks), rank, [abs(host - on[0]) for host in on]] for rank in range(len(ranks))
        ]


def test_a_stranger_without_the_key_of_the_job_is_refused_and_the_job_goes_on(members: Members) -> None:
    """Over TCP alone; it has said that it is member 1, before that one came."""
    refused = [answer for answers in members.call("answers_to_strangers") for answer in answers]
    assert refused == ([""] if members.name == "native_over_tcp" else [])


def test_functions_traced_anew_conditions_and_loops(members: Members) -> None:
    assert [one for those in members.call("under_way", group=None) for one in those] == []


def test_a_member_takes_part_in_what_it_does_not_look_at(members: Members) -> None:
    assert [one for those in members.call("looked_at_by_one", group=None) for one in those] == []


def test_what_begins_behind_the_start_of_a_send_need_not_wait_for_the_other(members: Members) -> None:
    if members.count > 1:
        sender, *others = members.call("behind_a_start")
        assert sender == ([] if members.name.startswith("native") and not members.in_one_process else None)
        assert others == [[]] * (members.count - 1)


def test_members_get_the_same_bits(members: Members) -> None:
    assert len(set(members.call("digest_of_sums", group=None))) == 1


def test_the_cut_of_tensors_into_messages_changes_no_bit(members: Members) -> None:
    """Native collectives alone promise this; where they tell hosts apart, the algorithm depends on the size."""
    if members.name.startswith("native"):
        assert [one for those in members.call("sums_cut_in_messages") for one in those] == []


def test_algorithms_between_hosts_by_name(members: Members) -> None:
    if (members.name, members.count) == ("native_over_tcp", 3):
        first, *others = members.call("algorithms_by_name")
        assert others == [first] * 2
        assert first["chosen"] == first["one-shot"] == first["two-shot"]  # in the order of ranks
        assert first["chosen"] not in (first["ring"], first["halving-doubling"], first["double-tree"])
        for fact in ("algorithms of all_reduce", "member 0: one-shot", "member 1: two-shot"):
            assert fact in first["refused"]


def test_what_cannot_be_is_refused_before_anything_travels(members: Members) -> None:
    for said in members.call("refusals"):
        kinds = {what: text.partition(":")[0] for what, text in said.items()}
        unsupported = {"text", "sum of text", "complex"}
        assert kinds == {what: "UnsupportedError" if what in unsupported else "ConfigError" for what in said}, said
    assert [one for those in members.call("under_way", group=None) for one in those] == []


def test_members_that_run_different_operations_are_told_so_alike(members: Members) -> None:
    if members.in_one_process:  # it has no engine
        return
    told = members.call("native_cases:different")
    expected = ["all_reduce (sum, float32) of 20 bytes", "broadcast from member 0 of 20 bytes"]
    assert all(
        said is None or (said.startswith("DisagreementError: ") and all(one in said for one in expected))
        for said in told
    ), told
    assert members.name.startswith("native") == (None not in told)


def test_a_member_that_lives_and_does_not_come_is_named_on_all(members: Members, tmp_path: Path) -> None:
    if members.in_one_process:  # it has no engine
        return
    told = members.call("native_cases:late", folder=str(tmp_path))
    wanted = ("DeadlineError: ", "all_reduce (sum, float32)", "20 bytes", "2 s", "waiting for member 1")
    assert all(said is None or says(said, *wanted) for said in told), told
    assert members.name.startswith("native") == (None not in told)


def test_what_is_used_no_more_ends_its_engine_and_what_was_traced_with_it_says_so(members: Members) -> None:
    if members.in_one_process:  # it has no engine
        return
    for found in members.call("native_cases:dropped"):
        if members.name.startswith("native"):
            ended, said = found
            assert (ended, "native collectives have ended" in said) == (1, True), said
        else:
            assert found is None


def test_too_little_shared_memory_leads_to_tcp_and_is_said_once_with_the_cure(members: Members) -> None:
    if members.in_one_process:  # it has no engine
        return
    found = members.call("native_cases:without_memory")
    if not members.name.startswith("native"):
        assert found == [None] * members.count
        return
    on = hosts(members.name, members.count)
    alone = [on.count(host) == 1 for host in on]  # these need no memory
    for rank, (where, total, said) in enumerate(found):
        assert (where, total) == (list(range(members.count)), 5.0 * members.count)
        assert len(said) == (not alone[rank] and on.index(on[rank]) == rank), said
        assert all("reduce over TCP" in one and "(ulimit -f)" in one for one in said)


def test_a_member_that_gives_up_ends_its_wait(members: Members, tmp_path: Path) -> None:
    """Leaves processes in which nothing travels any more: the last test of these."""
    if members.count == 2:
        members.call("begin_to_wait", absent=1, folder=str(tmp_path))
        members.call("abort", who_aborts=0)
        assert "on purpose" in what_became_of([0], tmp_path)[0]
    elif any(members.call("begin_a_step_that_fails", fails=1, folder=str(tmp_path))):
        others = [rank for rank in range(members.count) if rank != 1]
        assert all("this one fails" in said for said in what_became_of(others, tmp_path))
        wait_until((tmp_path / "1.txt").exists, "the member that has failed waits")
        assert (tmp_path / "1.txt").read_text().startswith("InvalidArgumentError: ")
    else:
        assert members.call("abort", who_aborts=-1) == [None] * members.count


@pytest.mark.parametrize("name", [name for name in MAKERS if 3 in MAKERS[name][2] and "in_one_process" not in name])
def test_a_member_that_is_killed_ends_the_waits_of_the_others(name: str, forking: Forks, tmp_path: Path) -> None:
    with started(forking, name, 3, ()) as members:
        processes = members.call("begin_to_wait", absent=2, folder=str(tmp_path))
        os.kill(processes[2], signal.SIGKILL)
        said = what_became_of([0, 1], tmp_path)
    if name.startswith("native"):  # told by the kernel or by a connection that closes, and not by a deadline
        assert all("member 2 " in text and ("has ended" in text or "has died" in text) for text in said), said


@pytest.mark.parametrize("name", ["native", "native_over_tcp"])
def test_a_fork_that_ends_takes_nothing_from_its_parent(name: str, forking: Forks) -> None:
    with started(forking, name, 2, ()) as members:
        assert members.call("end_a_fork") == [1, 1]
        assert [one for those in members.call("under_way", group=None) for one in those] == []


def test_a_member_that_is_killed_beside_process_sets_is_named(forking: Forks, tmp_path: Path) -> None:
    """Horovod ends the others then, who can be told nothing in Python: they say in their output why."""
    with started(forking, "horovod", 3, ((0, 1), (1, 2))) as members:
        processes = members.call("begin_to_wait", absent=2, folder=str(tmp_path))
        os.kill(processes[2], signal.SIGKILL)
        wait_until(lambda: not any(map(alive, processes)), "a member waits for one that is gone")
        *others, killed = members.pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)
    assert "SIGKILL" in killed.message
    for reply in others:
        assert (reply.status, "exit code 1" in reply.message) == ("exited", True), reply
        assert f"WorkerLostError: worker {reply.worker} " in reply.detail
        assert "worker 2 (127.0.0.1:" in reply.detail


def what_became_of(ranks: list[int], folder: Path) -> list[str]:
    """Return the errors with which members ended their waits."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    found = [folder / f"{rank}.txt" for rank in ranks]
    while not all(path.exists() for path in found):
        assert time.monotonic() < deadline, "a member still waits for one that is gone"
        time.sleep(0.05)
    said = [path.read_text() for path in found]
    assert all(text.startswith("WorkerLostError: ") and "a sum without one" in text for text in said), said
    return said
