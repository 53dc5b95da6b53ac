"""Models of keras-rs: a ranking of ads, two towers, and a ranking of lists."""

from typing import Any

import numpy as np

from ecosystem import shared
from ecosystem.entry import BATCH, Entry, Examples
from tfdist.verify.feature import keras, tf

_USERS, _ITEMS, _WIDTH, _DENSE, _LIST = 23, 17, 4, 5, 6


def _layers() -> Any:
    import keras_rs

    return keras_rs.layers


def _features(**lengths: int) -> Any:
    """The configuration of two features that look up one table."""
    table = _layers().TableConfig(name="items", vocabulary_size=_ITEMS, embedding_dim=_WIDTH, combiner="mean")
    return {
        name: _layers().FeatureConfig(name, table, input_shape=(BATCH, length), output_shape=(BATCH, _WIDTH))
        for name, length in lengths.items()
    }


def _dlrm() -> Any:
    layers = keras.layers
    numbers = keras.Input((_DENSE,), name="numbers")
    seen, shown = (keras.Input((length,), dtype="int32", name=name) for name, length in (("seen", 3), ("shown", 1)))
    embedded = _layers().DistributedEmbedding(_features(seen=3, shown=1))({"seen": seen, "shown": shown})
    vectors = [layers.Dense(_WIDTH, activation="relu")(numbers), embedded["seen"], embedded["shown"]]
    crossed = _layers().DotInteraction()(vectors)
    joined = layers.Concatenate()([*vectors, crossed])
    joined = _layers().FeatureCross(projection_dim=4)(joined, joined)
    outputs = layers.Dense(1, activation="sigmoid")(layers.Dense(8, activation="relu")(joined))
    return keras.Model({"numbers": numbers, "seen": seen, "shown": shown}, outputs)


def _clicks(random: np.random.Generator, rows: int) -> Examples:
    inputs = {
        "numbers": random.normal(size=(rows, _DENSE)).astype("float32"),
        "seen": random.integers(0, _ITEMS, (rows, 3)).astype("int32"),
        "shown": random.integers(0, _ITEMS, (rows, 1)).astype("int32"),
    }
    clicked = (inputs["seen"] == inputs["shown"]).any(axis=1, keepdims=True) | (inputs["numbers"][:, :1] > 1)
    return inputs, clicked.astype("float32"), None


def _two_towers() -> Any:
    """Users and items that meet in the loss, which gathers the items of the global batch as wrong answers."""

    class Towers(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = keras.Sequential([keras.layers.Embedding(_USERS, _WIDTH), keras.layers.Dense(_WIDTH)])
            self.items = keras.layers.Embedding(_ITEMS, _WIDTH)
            self.retrieval = _layers().BruteForceRetrieval(k=3, return_scores=False)

        def build(self, shape: Any) -> None:
            self.users.build(shape)
            self.items.build(shape)
            self.retrieval.candidate_embeddings = self.items.embeddings
            self.retrieval.build((*shape, _WIDTH))
            super().build(shape)

        def call(self, users: Any, training: bool = False) -> Any:
            found = {"users": self.users(users)}
            return found if training else found | {"items": self.retrieval(found["users"])}

        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            ops = keras.ops
            candidates = tf.distribute.get_replica_context().all_gather(y, axis=0)
            scores = ops.matmul(y_pred["users"], ops.transpose(self.items(candidates)))
            right = ops.cast(ops.equal(ops.expand_dims(y, 1), ops.expand_dims(candidates, 0)), scores.dtype)
            right = right / ops.sum(right, axis=1, keepdims=True)
            return ops.mean(keras.losses.categorical_crossentropy(right, scores, from_logits=True))

    model = Towers()
    model.build((None,))
    return model


def _bought(random: np.random.Generator, rows: int) -> Examples:
    users = random.integers(0, _USERS, rows).astype("int32")
    return users, ((users * 5 + random.integers(0, 3, rows)) % _ITEMS).astype("int32"), None


def _rated() -> Any:
    """Users and movies, as the first guide of keras-rs has them: `compute_loss` takes the movie from the targets."""

    class Retrieval(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = keras.layers.Embedding(_USERS, _WIDTH)
            self.movies = keras.layers.Embedding(_ITEMS, _WIDTH)
            self.retrieval = _layers().BruteForceRetrieval(k=3, return_scores=False)
            self.loss_fn = keras.losses.MeanSquaredError()

        def build(self, shape: Any) -> None:
            self.users.build(shape)
            self.movies.build(shape)
            self.retrieval.candidate_embeddings = self.movies.embeddings
            self.retrieval.build(shape)
            super().build(shape)

        def call(self, users: Any, training: bool = False) -> Any:
            found = {"users": self.users(users)}
            return found if training else found | {"movies": self.retrieval(found["users"])}

        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            ops = keras.ops
            scores = ops.sum(y_pred["users"] * self.movies(y["movie"]), axis=1, keepdims=True)
            return self.loss_fn(ops.expand_dims(y["rating"], -1), scores, sample_weight)

    model = Retrieval()
    model.build((None,))
    return model


def _ratings(random: np.random.Generator, rows: int) -> Examples:
    users = random.integers(0, _USERS, rows).astype("int32")
    movies = random.integers(0, _ITEMS, rows).astype("int32")
    return users, {"movie": movies, "rating": ((users * movies) % 5 / 4).astype("float32")}, None


def _ranker() -> Any:
    layers = keras.layers
    user, items = keras.Input((), dtype="int32", name="user"), keras.Input((_LIST,), dtype="int32", name="items")
    joined = layers.Concatenate()(
        [layers.RepeatVector(_LIST)(layers.Embedding(_USERS, _WIDTH)(user)), layers.Embedding(_ITEMS, _WIDTH)(items)]
    )
    scores = layers.Dense(1)(layers.Dense(8, activation="tanh")(joined))
    return keras.Model({"user": user, "items": items}, layers.Reshape((_LIST,))(scores))


def _lists(random: np.random.Generator, rows: int) -> Examples:
    users = random.integers(0, _USERS, rows).astype("int32")
    items = random.integers(0, _ITEMS, (rows, _LIST)).astype("int32")
    ranks = ((users[:, None] + items) % 4).astype("float32")
    ranks[random.random((rows, _LIST)) < 0.2] = -1  # lists have different lengths
    return {"user": users, "items": items}, ranks, None


def _hinge() -> Any:
    import keras_rs

    return keras_rs.losses.PairwiseHingeLoss()


def _gain() -> Any:
    import keras_rs

    return {"metrics": [keras_rs.metrics.NDCG(k=3)]}


ENTRIES = (
    Entry(
        name="DLRM",
        package="keras-rs",
        summary="DistributedEmbedding with a shared table, DotInteraction, FeatureCross",
        make=_dlrm,
        examples=_clicks,
        loss=lambda: "binary_crossentropy",
        optimizer=lambda: keras.optimizers.Adagrad(0.05),
        options=lambda: {"metrics": [keras.metrics.AUC()]},
        ways=("float32", "compressed"),
    ),
    Entry(
        name="retrieval",
        package="keras-rs",
        summary="two tables, as the guide has them: compute_loss looks up the targets",
        make=_rated,
        examples=_ratings,
        loss=lambda: None,
        optimizer=lambda: keras.optimizers.Adagrad(0.05),
    ),
    Entry(
        name="two_towers",
        package="keras-rs",
        summary="compute_loss gathers the items of the global batch; the others are the wrong answers",
        make=_two_towers,
        examples=_bought,
        loss=lambda: None,
        optimizer=shared.sgd,
    ),
    Entry(
        name="list_ranking",
        package="keras-rs",
        summary="PairwiseHingeLoss and NDCG over lists of different lengths",
        make=_ranker,
        examples=_lists,
        loss=_hinge,
        optimizer=shared.sgd,
        options=_gain,
    ),
)
