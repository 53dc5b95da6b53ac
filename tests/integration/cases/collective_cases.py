"""The battery of collectives: each function runs in every process at once and returns what is wrong, in words."""

import concurrent.futures
import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import collective_makers
import numpy as np
import tensorflow as tf

from tfdist import errors
from tfdist.collectives.backends import native_collective
from tfdist.collectives.byte_exchange import exchange_over
from tfdist.collectives.workers.worker_processes import Watchdog
from tfdist.native.engine import ALGORITHMS

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "int32", "int64", "uint8", "bool")
THOROUGHLY = ("bfloat16", "int64", "bool")  # with every shape and root; the other dtypes with one of each operation
SHAPES = ((), (0, 3), (1,), (13, 3))
NUMPY_OPS = {"sum": np.sum, "min": np.min, "max": np.max}


# Which replica a thread is, where members are replicas of one process.
_thread = threading.local()


@functools.cache
def made(name: str, groups: tuple[tuple[int, ...], ...], **replica: int) -> Any:
    maker, *_ = collective_makers.MAKERS[name]
    return maker(groups, **replica)


def of_replicas(function: str, count: int, given: dict[str, Any]) -> list[Any]:
    """Run one of these functions on every replica of this process at once; return what each returns."""

    def one(rank: int) -> Any:
        _thread.replica = {"rank": rank, "count": count}
        return globals()[function](**given)

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def collective(name: str, groups: Sequence[Sequence[int]], group: int | None) -> Any:
    """Return the collective of all processes, or of one of the groups (None where this process is not in it)."""
    whole, parts = made(name, tuple(tuple(one) for one in groups), **getattr(_thread, "replica", {}))
    return whole if group is None else parts[group]


def value(rank: int, shape: Sequence[int], dtype: str, times: int = 1) -> np.ndarray:
    """Return small whole numbers that differ from member to member, exact in every dtype and every order of adding."""
    numbers = (np.arange(np.prod(shape, dtype=int)).reshape(shape) * 3 + 5 * rank) % 11 * times
    return (numbers % 3 == 1) if dtype == "bool" else numbers.astype(tf.as_dtype(dtype).as_numpy_dtype)


def reduced(op: str, table: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(table)
    if stacked.dtype == bool:
        return stacked.all(axis=0) if op == "min" else stacked.any(axis=0)
    return NUMPY_OPS[op](stacked, axis=0).astype(stacked.dtype)


def extremes(rank: int, size: int, dtype: str) -> np.ndarray:
    """Return numbers of which members have NaNs with bits of their own, zeros with other signs, and infinities."""
    numbers = np.full([size + 4], 1.5 * rank - 2).astype(tf.as_dtype(dtype).as_numpy_dtype)
    bits = numbers.view(f"u{numbers.itemsize}")
    numbers[[rank, size]] = np.nan
    bits[[rank, size]] |= bits.dtype.type((rank % 2) << (8 * numbers.itemsize - 1) | rank + 1)
    numbers[size + 1] = -0.0 if rank % 2 else 0.0
    numbers[size + 2 :] = np.inf if rank else 3.0, 3.0 if rank else -np.inf
    return numbers


def extreme(op: str, size: int, dtype: str) -> np.ndarray:
    """Return the minimum or maximum of the members' `extremes`, in which one NaN is as the other."""
    nan, least, greatest = [np.nan] * (size + 1), [-0.0, 3.0, -np.inf], [0.0, np.inf, 3.0]
    return np.array([*nan, *(least if op == "min" else greatest)]).astype(tf.as_dtype(dtype).as_numpy_dtype)


def extremes_of(own: Any, dtype: str) -> Iterator[tuple[str, tf.Tensor, np.ndarray]]:
    """Take the minimum and the maximum of `extremes`; see `results_of`."""
    for op in ("min", "max") if tf.as_dtype(dtype).is_floating and own.size > 1 else ():
        mine = tf.constant(extremes(own.rank, own.size, dtype))
        (got,) = own.all_reduce([mine], key=f"extreme {op} {dtype}", op=op)
        yield f"{op} of NaNs {dtype}", got, extreme(op, own.size, dtype)


def part(table: np.ndarray, rank: int, size: int) -> np.ndarray:
    rows = len(table)
    return table[rows * rank // size : rows * (rank + 1) // size]


def check(wrong: list[str], what: str, got: Any, wanted: np.ndarray) -> None:
    got = np.asarray(got.numpy())  # of a scalar it is no array
    if got.shape != wanted.shape or got.dtype != wanted.dtype or got.tobytes() != wanted.tobytes():
        wrong.append(f"{what}: got {got.dtype} {got.shape} {got.ravel()[:6]}, wanted {wanted.ravel()[:6]}")


def operations(name: str, groups: Sequence[Sequence[int]], group: int | None, traced: bool) -> list[str]:
    """Go through every operation and shape, in one function or eagerly.

    Two members, or one, go through all dtypes in a function, which most calls are made in. What a group is, and whether
    an operation runs by itself, has to do with shapes and not with dtypes.
    """
    own = collective(name, groups, group)
    if own is None:
        return []
    thorough = THOROUGHLY if own.size < 3 else THOROUGHLY[:1]
    dtypes = THOROUGHLY[:1]
    if group is None:
        dtypes = DTYPES if own.size < 3 and traced else THOROUGHLY
    expected: list[tuple[str, np.ndarray]] = []

    def every() -> list[tf.Tensor]:
        found: list[tf.Tensor] = []
        for dtype in dtypes:
            for what, tensor, wanted in results_of(own, dtype, briefly=dtype not in thorough):
                expected.append((what, wanted))
                found.append(tensor)
        return found

    found = (tf.function(every, autograph=False) if traced else every)()
    wrong: list[str] = []
    for (what, wanted), got in zip(expected, found, strict=True):
        check(wrong, what, got, wanted)
    return wrong


def results_of(
    own: Any, dtype: str, *, sends: bool = True, briefly: bool = False
) -> Iterator[tuple[str, tf.Tensor, np.ndarray]]:
    """Run every operation on one dtype, briefly with one shape; give what it was, its result, and the right one."""
    rank, size = own.rank, own.size
    least = -1 if briefly else 0  # of what is in a list, the last alone

    def mine(shape: Sequence[int]) -> tf.Tensor:
        return tf.constant(value(rank, shape, dtype), tf.as_dtype(dtype))

    def of_all(shape: Sequence[int]) -> list[np.ndarray]:
        return [value(r, shape, dtype) for r in range(size)]

    for op in NUMPY_OPS:
        for shape, got in zip(
            SHAPES, own.all_reduce([mine(s) for s in SHAPES], key=f"{op} {dtype}", op=op), strict=True
        ):
            yield f"{op} {dtype} {shape}", got, reduced(op, of_all(shape))
    yield from extremes_of(own, dtype)
    for rows in ([0] * size, [5] * size, [7 - 3 * r for r in range(size)])[least:]:
        got = own.all_gather(mine([rows[rank], 3]), key=f"gather {dtype} {rows}", equal_rows=len(set(rows)) == 1)
        yield f"gather {dtype} {rows}", got, np.concatenate([value(r, [rows[r], 3], dtype) for r in range(size)])
    for shape in SHAPES[1::2][least:]:
        got = own.reduce_scatter(mine(shape), key=f"scatter {dtype} {shape}")
        yield f"scatter {dtype} {shape}", got, part(reduced("sum", of_all(shape)), rank, size)
        got = own.all_to_all(mine(shape), key=f"exchange {dtype} {shape}")
        yield f"exchange {dtype} {shape}", got, np.concatenate([part(one, rank, size) for one in of_all(shape)])
    for root, shape in itertools.product(sorted({0, size - 1})[least:], SHAPES[-1:]):
        got = own.broadcast(mine(shape), key=f"broadcast {dtype} {shape} {root}", root=root)
        yield f"broadcast {dtype} {shape} {root}", got, value(root, shape, dtype)
    for sender in range(size if size > 1 and sends else 0):
        receiver = (sender + 1) % size
        for shape in SHAPES[::3][least:]:
            if rank == sender:
                own.send(mine(shape), key=f"send {dtype} {shape}", to=receiver)
            elif rank == receiver:
                spec = tf.TensorSpec(shape, tf.as_dtype(dtype))
                got = own.receive(spec, key=f"send {dtype} {shape}", source=sender)
                yield f"send {dtype} {shape} {sender}", got, value(sender, shape, dtype)


def halves(name: str, groups: Sequence[Sequence[int]]) -> list[str]:
    """Sum numbers that 16 bits cannot add in any order; it is to be as if added in float32 and rounded once."""
    own = collective(name, groups, None)
    wrong: list[str] = []
    for dtype, mantissa in ((tf.float16, 10), (tf.bfloat16, 7)):
        small = 2.0 ** -(mantissa + 2)  # a quarter of the distance from 1 to the next number
        numbers = np.array([1.0, small, small + 2.0 ** -(2 * mantissa + 2), 0.0])[: own.size]
        table = (numbers[:, None] * 2.0 ** np.arange(7)).astype(dtype.as_numpy_dtype)
        wanted = table.astype(np.float32).sum(axis=0).astype(dtype.as_numpy_dtype)

        def totals(mine: tf.Tensor, key: str = dtype.name) -> list[tf.Tensor]:
            return own.all_reduce([mine[:2], mine[2:]], key=f"halves {key}")

        for call in (tf.function(totals, autograph=False), totals):
            check(wrong, dtype.name, tf.concat(call(tf.constant(table[own.rank], dtype)), axis=0), wanted)
    return wrong


def under_way(name: str, groups: Sequence[Sequence[int]], group: int | None) -> list[str]:
    """Reduce tensors whose shape changes with every call, in conditions and loops, and in functions traced anew."""
    own = collective(name, groups, group)
    if own is None:
        return []
    rank, size = own.rank, own.size
    wrong: list[str] = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2], tf.bfloat16)])
    def step(rows: tf.Tensor, halves: tf.Tensor) -> list[tf.Tensor]:
        def once(total: tf.Tensor) -> tf.Tensor:
            return own.all_reduce([total], key="loop")[0]

        many = tf.shape(rows)[0] > 2
        return [
            own.all_reduce([rows], key="sum")[0],
            own.all_reduce([halves], key="halves")[0],
            own.all_gather(rows[: rank + 1], key="gather"),
            own.reduce_scatter(rows, key="scatter"),
            own.all_to_all(rows, key="exchange"),
            own.broadcast(rows, key="broadcast", root=size - 1),
            tf.cond(many, lambda: own.all_reduce([rows], key="condition", op="max")[0], lambda: rows),
            tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, once(total)), [0, tf.ones([2])])[1],
        ]

    for count in (5, 2, 0, 7, 5):
        tables = [value(r, [count, 2], "float32", times=count) for r in range(size)]
        wanted = [
            reduced("sum", tables),
            reduced("sum", tables).astype(tf.bfloat16.as_numpy_dtype),
            np.concatenate([table[: r + 1] for r, table in enumerate(tables)]),
            part(reduced("sum", tables), rank, size),
            np.concatenate([part(table, rank, size) for table in tables]),
            tables[-1],
            reduced("max", tables) if count > 2 else tables[rank],
            np.full([2], float(size**3), np.float32),
        ]
        got = step(tf.constant(tables[rank]), tf.cast(tables[rank], tf.bfloat16))
        for index, (one, right) in enumerate(zip(got, wanted, strict=True)):
            check(wrong, f"operation {index} of {count} rows", one, right)
        fresh = tf.function(lambda x: own.all_reduce([x], key="sum")[0], autograph=False)
        check(wrong, f"traced anew for {count} rows", fresh(tf.constant(tables[rank])), wanted[0])
    return wrong


def looked_at_by_one(name: str, groups: Sequence[Sequence[int]], group: int | None) -> list[str]:
    """Run every operation in a function; each result is looked at by one member, and left alone by the others."""
    own = collective(name, groups, group)
    if own is None:
        return []
    expected: list[tuple[str, np.ndarray]] = []

    def mine() -> list[tf.Tensor]:
        found = []
        for turn, (what, tensor, wanted) in enumerate(results_of(own, "float32")):
            if turn % own.size == own.rank:
                expected.append((what, wanted))
                found.append(tensor)
        return found

    wrong: list[str] = []
    for (what, wanted), got in zip(expected, tf.function(mine, autograph=False)(), strict=True):
        check(wrong, what, got, wanted)
    return wrong


def behind_a_start(name: str, groups: Sequence[Sequence[int]]) -> list[str] | None:
    """Ask for a message behind another one, which is sent behind the start of the first; None: no start is known."""
    own = collective(name, groups, None)
    numbers = tf.range(1_000_003.0)  # more than shared memory and sockets hold
    starts = []

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        if own.rank == 0:
            sent = own.send(numbers, key="first", to=1)
            starts.append(own.start_of(sent))
            with tf.control_dependencies([one for one in starts if one is not None]):
                own.send(tf.ones([1]), key="second", to=1)
        elif own.rank == 1:
            with tf.control_dependencies([own.receive(tf.TensorSpec([1]), key="second", source=0)]):
                return own.receive(tf.TensorSpec(numbers.shape), key="first", source=0)
        return numbers

    wrong: list[str] = []
    for _ in range(3):
        check(wrong, "the first message", step(), numbers.numpy())
    return None if starts == [None] else wrong


def digest_of_sums(name: str, groups: Sequence[Sequence[int]], group: int | None) -> str | None:
    """Return a digest of sums of numbers of which each order of adding makes another; the same on all members."""
    own = collective(name, groups, group)
    if own is None:
        return None
    draw = np.random.RandomState(own.rank)
    numbers = [draw.normal(size=size) * 10.0 ** draw.randint(-3, 4, size=size) for size in (1, 7, 1009)]
    kinds = [tf.as_dtype(dtype) for dtype in FLOATS]

    @tf.function(autograph=False)
    def sums() -> list[tf.Tensor]:
        return own.all_reduce([tf.cast(table, dtype) for dtype in kinds for table in numbers], key="digest")

    bits = [b"".join(total.numpy().tobytes() for total in sums()) for _ in range(3)]
    assert bits[0] == bits[1] == bits[2]
    return hashlib.sha256(bits[0]).hexdigest()


def sums_cut_in_messages(name: str, groups: Sequence[Sequence[int]]) -> list[str]:
    """Return whether bits of sums depend on how many numbers travel together; each order of adding makes others."""
    own, wrong = collective(name, groups, None), list[str]()
    draw = np.random.RandomState(own.rank)
    numbers = (draw.normal(size=200_003) * 10.0 ** draw.randint(-3, 4, size=200_003)).astype(np.float32)
    (whole,) = own.all_reduce([tf.constant(numbers)], key="whole")
    for length in (7, 5_000, 150_000):
        (part,) = own.all_reduce([tf.constant(numbers[:length])], key=f"first {length}")
        check(wrong, f"the first {length} of {len(numbers)}", part, whole.numpy()[:length])
    return wrong


def algorithms_by_name(name: str, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return digests of sums by algorithm, and what is said to members that name different ones."""
    own, found = collective(name, groups, None), dict[str, Any]()
    exchange = exchange_over(own)
    numbers = tf.constant(np.random.RandomState(own.rank).normal(size=50_000), tf.float32)
    device = f"/job:worker/replica:0/task:{own.rank}/device:CPU:0"
    given: dict[str, Any] = {"rank": own.rank, "exchange": exchange, "host": f"host {own.rank}", "device": device}
    for algorithm in (None, *ALGORITHMS):
        job = native_collective.join(**given, algorithm=algorithm)
        (total,) = job.collective().all_reduce([numbers], key="named")
        found[algorithm or "chosen"] = hashlib.sha256(total.numpy().tobytes()).hexdigest()
        exchange(b"")  # nobody stops before all are done
        job.stop()
    try:
        native_collective.join(**given, algorithm=ALGORITHMS[own.rank])
    except errors.ConfigError as refused:
        found["refused"] = str(refused)
    return found


def who(name: str, groups: Sequence[Sequence[int]], group: int | None) -> Any:
    """Return the collective's size and hosts, and this member's number."""
    own = collective(name, groups, group)
    return None if own is None else [own.size, own.rank, list(own.hosts)]


def refusals(name: str, groups: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return what is said to calls that cannot be, none of which reaches another member."""
    own = collective(name, groups, None)
    calls = {
        "op": lambda: own.all_reduce([tf.ones([2])], key="a", op="average"),
        "text": lambda: own.all_gather(tf.constant(["a"]), key="a"),
        "sum of text": lambda: own.all_reduce([tf.constant("a")], key="a"),
        "complex": lambda: own.all_reduce([tf.constant(1j)], key="a", op="max"),
        "scalar": lambda: own.all_gather(tf.constant(1.0), key="a"),
        "scattered scalar": lambda: own.reduce_scatter(tf.constant(1.0), key="a"),
        "exchanged scalar": lambda: own.all_to_all(tf.constant(1.0), key="a"),
        "root": lambda: own.broadcast(tf.ones([2]), key="a", root=own.size),
        "to": lambda: own.send(tf.ones([2]), key="a", to=own.size),
        "to itself": lambda: own.send(tf.ones([2]), key="a", to=own.rank),
        "from itself": lambda: own.receive(tf.TensorSpec([2]), key="a", source=own.rank),
    }
    if own.size > 1:
        other = (own.rank + 1) % own.size
        calls["unknown shape"] = lambda: own.receive(tf.TensorSpec([None]), key="a", source=other)
    said = {}
    for what, call in calls.items():
        try:
            call()
            said[what] = "nothing"
        except errors.TfdistError as error:
            said[what] = f"{type(error).__name__}: {error}"
    return said


def end_a_fork(name: str, groups: Sequence[Sequence[int]]) -> int:
    """Fork, and end in the child what ends when a script does; return the child's exit code."""
    own = collective(name, groups, None)
    child = os.fork()
    if child == 0:
        own.abort("in a fork")
        for job in collective_makers.JOBS:
            job.stop()
        os._exit(len(collective_makers.JOBS))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begin_to_wait(name: str, groups: Sequence[Sequence[int]], absent: int, folder: str) -> int:
    """Wait for all others in a sum, in a thread that leaves in a file what came of it; return this process's id.

    Args:
        name: of the implementation.
        groups: as everywhere.
        absent: the member that does not take part.
        folder: where the file is written, named by the rank.
    """
    own = collective(name, groups, None)
    if own.rank != absent:
        threading.Thread(target=_wait, args=(own, folder), daemon=True).start()
    return os.getpid()


def begin_a_step_that_fails(name: str, groups: Sequence[Sequence[int]], fails: int, folder: str) -> bool:
    """Let one member fail between two sums of a step; what became of each is written into a file, as above.

    Returns:
        Whether the others are to hear of it.
    """
    own = collective(name, groups, None)
    if own.matches_by_count:
        threading.Thread(target=_wait, args=(own, folder, own.rank == fails), daemon=True).start()
    return bool(own.matches_by_count)


def _wait(own: Any, folder: str, fails: bool = False) -> None:
    watchdog = Watchdog(
        timeout_seconds=100.0, abort=own.abort, explain=own.explain, ends_with_a_step=own.matches_by_count
    )

    def step(number: tf.Tensor) -> tf.Tensor:
        (first,) = own.all_reduce([tf.ones([3])], key="first")
        checked = tf.debugging.check_numerics(first * number, "this one fails")
        return own.all_reduce([checked], key="never")[0]

    try:
        with watchdog.waiting("a sum without one"):
            total = tf.function(step, autograph=False)(tf.constant(np.nan if fails else 1.0))
        text = f"returned {total}"
    except (errors.TfdistError, tf.errors.OpError) as error:
        text = f"{type(error).__name__}: {error}"
    partial = os.path.join(folder, f"{own.rank}.part")
    with open(partial, "w") as file:
        file.write(text)
    os.rename(partial, os.path.join(folder, f"{own.rank}.txt"))


def answers_to_strangers(name: str, groups: Sequence[Sequence[int]]) -> list[str]:
    """Return what members have answered to a stranger that this process let in between."""
    collective(name, groups, None)
    return [answer.hex() for answer in collective_makers.ANSWERS]


def abort(name: str, groups: Sequence[Sequence[int]], who_aborts: int) -> None:
    """Abort on one member."""
    own = collective(name, groups, None)
    if own.rank == who_aborts:
        own.abort("on purpose")
