"""Train a recommender, whose embeddings are divided over parameter servers, on a log of users' choices.

python strategies/parameter_server/train.py
tfdist run --strategy parameter-server -n 2 --parameter-servers 2 strategies/parameter_server/train.py

The first command starts workers and servers by itself. A score is the inner product of a user's and an item's vector,
plus the item's general popularity. It is trained by a softmax over the chosen item and some random ones.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import curves
import interactions
import keras
import numpy as np
import tensorflow as tf

import tfdist


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.ParameterServerStrategy(
        local_workers=options.workers,
        local_servers=options.servers,
        max_staleness=options.max_staleness,
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(16 << 10, options.shards),
    )
    keras.utils.set_random_seed(options.seed)
    log = interactions.make(options.users, options.items, options.per_user, seed=options.seed)
    popular = interactions.quality(lambda users: np.tile(log.taken, (len(users), 1)), log, options.k)
    possible = interactions.quality(log.log_weights, log, options.k)

    with strategy.scope():
        model = build(log.users, log.items, options.dim)
        optimizer = keras.optimizers.Adagrad(options.learning_rate, initial_accumulator_value=1e-7)
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def measure(epoch: int, logs: dict[str, float]) -> None:
        logs["recall"], logs["ndcg"] = interactions.quality(scores_of(model), log, options.k)

    data = interactions.batches(log, options.batch_size, options.negatives, options.seed)
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=measure)]
    began = time.monotonic()
    history = model.fit(data, epochs=options.epochs, shuffle=False, callbacks=callbacks, verbose=2).history
    seconds = time.monotonic() - began

    print("", strategy.placement_table(), "", sep="\n")
    print(f"{'':<12}  {f'recall@{options.k}':>10}  {f'NDCG@{options.k}':>10}")
    reached = history["recall"][-1], history["ndcg"][-1]
    for name, (recall, ndcg) in {"recommender": reached, "most popular": popular, "true tastes": possible}.items():
        print(f"{name:<12}  {recall:>10.4f}  {ndcg:>10.4f}")
    print(f"\nstaleness     {strategy.staleness}", f"lost workers  {strategy.lost_workers}", sep="\n")
    print(f"training      {len(log.train):,} interactions, {options.epochs} epochs, {seconds:.1f} s", flush=True)
    if options.save:
        model.save(options.save)
    if options.plot:
        curves.draw(history, popular[0], strategy.staleness.counts, k=options.k, path=options.plot)


def build(users: int, items: int, dim: int) -> keras.Model:
    """Return a model of plain Keras layers from a user, items, and corrections of their scores to scores."""
    layers = keras.layers
    user = keras.Input((), dtype="int32", name="user")
    candidates = keras.Input((None,), dtype="int32", name="items")
    log_q = keras.Input((None,), name="log_q")
    small = keras.initializers.RandomNormal(stddev=0.1)
    taste = layers.Embedding(users, dim, embeddings_initializer=small, name="taste")(user)
    kind = layers.Embedding(items, dim, embeddings_initializer=small, name="kind")(candidates)
    worth = layers.Embedding(items, 1, embeddings_initializer="zeros", name="worth")(candidates)
    scores = layers.Dot(axes=(2, 1))([kind, taste]) + keras.ops.squeeze(worth, axis=-1)
    return keras.Model([user, candidates, log_q], scores - log_q, name="recommender")


def scores_of(model: keras.Model) -> interactions.Scores:
    """Return the scores that a model gives all items, as a function of users."""
    taste, kind, worth = (model.get_layer(name).get_weights()[0] for name in ("taste", "kind", "worth"))
    return lambda users: taste[users] @ kind.T + worth[:, 0]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    staleness = os.environ.get("TFDIST_MAX_STALENESS", "none")

    def add(name: str, default: Any, told: str, kind: Any = int) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{told} (%(default)s)")

    add("--users", 5000, "users in the log")
    add("--items", 5000, "items in the log")
    add("--per-user", 40.0, "mean number of interactions per user", float)
    add("--dim", 16, "numbers in the vector of a user or an item")
    add("--negatives", 20, "random items beside each chosen one")
    add("--epochs", 5, "passes over the log")
    add("--batch-size", 1024, "interactions per update; asynchronously each worker computes whole batches")
    add("--learning-rate", 0.1, "rate of Adagrad", float)
    add("--k", 20, "length of the evaluated list of recommendations")
    add("--seed", 17, "seed of the log, the first weights and the draws; asynchronous arithmetic differs in every run")
    add("--max-staleness", staleness, "0: workers share each batch; N: bounded; none: asynchronous", bound)
    add("--shards", 2, "parts of a table, spread over the servers; one of less than 32 KiB stays whole")
    add("--workers", 2, "workers to start, if tfdist run has not")
    add("--servers", 2, "parameter servers to start, likewise")
    parser.add_argument("--save", type=Path, metavar="FILE.keras", help="save the model, for plain Keras to load")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw learning curves and staleness")
    return parser.parse_args()


def bound(text: str) -> int | None:
    return None if text == "none" else int(text)


if __name__ == "__main__":
    main()
