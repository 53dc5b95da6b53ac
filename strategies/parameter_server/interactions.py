"""A log of the items that users of a shop took, in order; batches of it, and the quality of scores.

A user takes an item, once, with a probability proportional to popularity * exp(strength * taste(user) . kind(item)).
Popularity falls with the rank as a power (Zipf), most users take few items and some take many, and each user comes at a
time of their own. The last tenth of the log is what a recommender has to foresee.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Scores = Callable[[NDArray[np.intp]], NDArray[np.floating]]

TASTES = 8
HELD_OUT = 0.1
NEVER = 1e9  # taken off the score of an item that was drawn and is the one that was taken
_USERS_AT_A_TIME = 500


@dataclass(frozen=True, kw_only=True)
class Interactions:
    """A log that is cut at one moment, and what it was made from.

    Attributes:
        train, test: user and item of each interaction, ``[interactions, 2]``, in the order of time.
        log_weights: what made the log, as scores: of users, ``[n]``, for all items, ``[n, items]``.
        users, items: how many there are.
    """

    train: Ids
    test: Ids
    log_weights: Scores
    users: int
    items: int

    @property
    def taken(self) -> NDArray[np.int64]:
        """The number of times that each item was taken before the cut, ``[items]``."""
        return np.bincount(self.train[:, 1], minlength=self.items)


def make(
    users: int, items: int, per_user: float, *, seed: int, zipf: float = 0.9, strength: float = 1.8
) -> Interactions:
    """Return a log of about ``users * per_user`` interactions; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    popularity = -zipf * np.log1p(rng.permutation(items))
    tastes = rng.standard_normal((users, TASTES)) / TASTES**0.5
    kinds = rng.standard_normal((items, TASTES)) * strength
    amounts = np.minimum(rng.lognormal(np.log(per_user) - 0.5, 1.0, users), items / 4).astype(int) + 1

    def log_weights(which: NDArray[np.intp]) -> NDArray[np.floating]:
        return popularity + tastes[which] @ kinds.T

    taken, times = [], []
    for some in _in_groups(users):
        # the best of log-weights with Gumbel noise are draws without replacement, in the order of drawing
        drawn = _best(log_weights(some) + rng.gumbel(size=(len(some), items)), amounts[some].max())
        for user, row in zip(some, drawn, strict=True):
            count = amounts[user]
            taken.append(np.stack([np.full(count, user), row[:count]], axis=1))
            times.append(np.sort(rng.uniform(0.8 * rng.uniform(), 1, count)))
    log = np.concatenate(taken)[np.argsort(np.concatenate(times))].astype(np.int32)
    cut = round(len(log) * (1 - HELD_OUT))
    return Interactions(train=log[:cut], test=log[cut:], log_weights=log_weights, users=users, items=items)


def batches(log: Interactions, size: int, negatives: int, seed: int) -> tf.data.Dataset:
    """Return batches of an item that was taken and items that are drawn, others in every epoch.

    Items are drawn log-uniformly by their rank, so popular ones more often, and log q of each is taken off its score:
    otherwise the softmax would hold its popularity against it (Y. Bengio, J.-S. Senécal, 2008).
    """
    by_rank = np.argsort(-log.taken, kind="stable").astype(np.int32)
    log_q = np.empty(log.items, np.float32)
    log_q[by_rank] = np.log(np.diff(np.log1p(np.arange(log.items + 1))) / np.log1p(log.items))

    def with_negatives(pairs: tf.Tensor, draw: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        user, positive = pairs[:, 0], pairs[:, 1:]
        uniform = tf.random.stateless_uniform([tf.shape(pairs)[0], negatives], draw)
        ranks = tf.cast((log.items + 1.0) ** uniform - 1, tf.int32)
        drawn = tf.gather(by_rank, tf.minimum(ranks, log.items - 1))
        off_drawn = tf.where(drawn == positive, NEVER, tf.gather(log_q, drawn))
        off = tf.concat([tf.gather(log_q, positive), off_drawn], axis=1)
        return (user, tf.concat([positive, drawn], axis=1), off), tf.zeros_like(user)

    pairs = tf.data.Dataset.from_tensor_slices(log.train).shuffle(len(log.train), seed=seed).batch(size)
    draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
    return tf.data.Dataset.zip(pairs, draws).map(with_negatives).prefetch(2)


def quality(scores: Scores, log: Interactions, k: int) -> tuple[float, float]:
    """Return recall and NDCG of the k best items that a user had not taken, as means over users who took more later.

    Args:
        scores: of users, ``[n]``, for all items, ``[n, items]``; higher is better.
        log: what was taken.
        k: length of a list of recommendations, less than the number of items.
    """
    discounts = 1 / np.log2(np.arange(k) + 2)
    recalls, gains = [], []
    for some in _in_groups(log.users):
        wanted = _taken(log.test, some, log.items)
        best = _best(np.where(_taken(log.train, some, log.items), -np.inf, scores(some)), k)
        counts = wanted.sum(axis=1)
        asked = counts > 0
        hits = np.take_along_axis(wanted, best, axis=1)[asked]
        recalls.append(hits.sum(axis=1) / counts[asked])
        gains.append(hits @ discounts / np.cumsum(discounts)[np.minimum(counts[asked], k) - 1])
    return float(np.concatenate(recalls).mean()), float(np.concatenate(gains).mean())


def _in_groups(users: int) -> Iterator[NDArray[np.intp]]:
    yield from np.array_split(np.arange(users), -(-users // _USERS_AT_A_TIME))


def _best(scores: NDArray[np.floating], k: int) -> NDArray[np.intp]:
    """Return the places of the k largest numbers in each row, the largest first."""
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1), axis=1)


def _taken(pairs: Ids, users: NDArray[np.intp], items: int) -> NDArray[np.bool_]:
    """Return a table of the items that these users took, whose numbers follow each other: ``[users, items]``."""
    table = np.zeros((len(users), items), bool)
    mine = pairs[(pairs[:, 0] >= users[0]) & (pairs[:, 0] <= users[-1])]
    table[mine[:, 0] - users[0], mine[:, 1]] = True
    return table
