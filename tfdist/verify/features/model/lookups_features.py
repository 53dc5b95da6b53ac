"""Tables of embeddings that are looked up by other numbers than the examples': positions, types, buckets.

Adam squares each row of a gradient. A row of no example occurs once on one device, and once on every replica.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import BATCH, EVEN, PARTIAL, compiled, regression, sgd, state, trained

_LENGTH, _WORDS, _WIDTH = 5, 7, 4


def _texts(rows: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, _WORDS, size=(rows, _LENGTH)).astype("int32")


def _model(embed: Callable[..., Any], *, tables: int = 2, length: int | None = _LENGTH) -> Any:
    """Return a model of what a function makes of words and tables, (batch, length, 4), and of kernels."""

    class Embed(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [keras.layers.Embedding(2 * _WORDS, _WIDTH) for _ in range(tables)]

        def build(self, shape: Any) -> None:
            for table in self.tables:
                table.build(shape)

        def call(self, words: Any) -> Any:
            return embed(words, *self.tables)

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape, _WIDTH)

    layers = [Embed(), keras.layers.Dense(3, activation="tanh"), keras.layers.GlobalAveragePooling1D()]
    return keras.Sequential([keras.Input((length,), dtype="int32"), *layers, keras.layers.Dense(1)])


def _fit(
    ctx: Context, embed: Callable[..., Any], optimizer: Any = None, *, compiled: bool = False, **model: Any
) -> Outcome:
    with ctx.scope():
        made = _model(embed, **model)
        made.compile(keras.optimizers.Adam(0.02) if optimizer is None else optimizer(), "mse", jit_compile=compiled)
    rows = EVEN if compiled else PARTIAL  # XLA would compile a partial batch separately
    return trained(ctx, made, _texts(rows), regression(rows)[1])


def _positions(words: Any) -> Any:
    return keras.ops.arange(keras.ops.shape(words)[-1])


@feature()
def positions(ctx: Context) -> Outcome:
    """A table of positions beside one of words, with Adam: ops.arange of a fixed length."""
    return _fit(ctx, lambda words, table, places: table(words) + places(_positions(words)))


@feature()
def positions_under_xla(ctx: Context) -> Outcome:
    """jit_compile=True: what hands gradients on shows no longer where their indices come from."""
    return _fit(ctx, lambda words, table, places: table(words) + places(_positions(words)), compiled=True)


@feature()
def positions_of_any_length(ctx: Context) -> Outcome:
    """Positions of texts whose length is known when a step runs."""
    return _fit(ctx, lambda words, table, places: table(words) + places(_positions(words)), length=None)


@feature()
def positions_after_a_layer(ctx: Context) -> Outcome:
    """Positions counted from what layers make of texts of any length."""

    def embed(words: Any, table: Any, places: Any) -> Any:
        hidden = keras.ops.matmul(table(words), keras.ops.ones((_WIDTH, _WIDTH)))
        return hidden + places(keras.ops.arange(keras.ops.shape(hidden)[1]))

    return _fit(ctx, embed, length=None)


@feature()
def positions_for_each_example(ctx: Context) -> Outcome:
    """Positions repeated for each example, and a type of zeros for each word: as many rows as words."""

    def embed(words: Any, table: Any, others: Any) -> Any:
        repeated = keras.ops.broadcast_to(_positions(words)[None], keras.ops.shape(words))
        return table(words) + others(repeated) + others(keras.ops.zeros_like(words) + _WORDS)

    return _fit(ctx, embed)


@feature()
def positions_in_batches_of_fixed_size(ctx: Context) -> Outcome:
    """Positions, and positions repeated for each example, in batches whose size is fixed."""

    def embed(words: Any, table: Any, others: Any) -> Any:
        repeated = keras.ops.broadcast_to(_positions(words)[None], keras.ops.shape(words))
        return table(words) + table(_positions(words)) + others(repeated)

    model = compiled(ctx, lambda: _model(embed), lambda: keras.optimizers.Adam(0.02))
    data = tf.data.Dataset.from_tensor_slices((_texts(PARTIAL), regression(PARTIAL)[1]))
    return trained(ctx, model, data.batch(BATCH, drop_remainder=True), batch_size=None)


@feature()
def relative_positions(ctx: Context) -> Outcome:
    """Buckets of relative positions: constant indices, each there many times, and each row squared by itself."""

    def embed(words: Any, table: Any, buckets: Any) -> Any:
        places = np.arange(_LENGTH)
        return table(words) + keras.ops.mean(buckets(np.abs(places[:, None] - places[None])), axis=1)

    return _fit(ctx, embed)


@feature()
def shared_table(ctx: Context) -> Outcome:
    """One table that is looked up by words, by their neighbours and by constants, with Adam."""

    def embed(words: Any, table: Any) -> Any:
        return table(words) + table(_positions(words)) + table(keras.ops.roll(words, 1, axis=1)) + table(np.array([3]))

    return _fit(ctx, embed, tables=1)


@feature()
def shared_table_of_any_length(ctx: Context) -> Outcome:
    """One table that is looked up by words and by positions of texts of any length, with global_clipnorm and Adam."""

    def embed(words: Any, table: Any) -> Any:
        return table(words) + table(_positions(words))

    return _fit(ctx, embed, lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.05), tables=1, length=None)


@feature()
def shared_table_sgd(ctx: Context) -> Outcome:
    """One table that is looked up by words and by positions, with SGD."""
    return _fit(ctx, lambda words, table: table(words) + table(_positions(words)), sgd, tables=1)


@feature()
def tied_table(ctx: Context) -> Outcome:
    """A table that is looked up by words and multiplied with what is made of them: a gradient of the whole table."""

    def embed(words: Any, table: Any, places: Any) -> Any:
        hidden = table(words) + places(_positions(words))
        return keras.ops.matmul(keras.ops.matmul(hidden, keras.ops.transpose(table.embeddings)), table.embeddings)

    return _fit(ctx, embed)


@feature()
def positions_in_a_step_of_ones_own(ctx: Context) -> Outcome:
    """Positions in a train_step of one's own, which scales the gradients, with Adagrad."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            gradients = [keras.ops.multiply(gradient, 2.0) for gradient in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    with ctx.scope():
        inner = _model(lambda words, table: table(words) + table(_positions(words)), tables=1)
        model = Own(inner.inputs, inner.outputs)
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    model.fit(_texts(PARTIAL), regression(PARTIAL)[1], batch_size=BATCH, shuffle=False, verbose=0)
    return state(ctx, model)


@feature()
def transformer_block(ctx: Context) -> Outcome:
    """The classifier of keras.io's text classification: words and positions, attention, normalization, Adam."""
    with ctx.scope():
        words = keras.Input((_LENGTH,), dtype="int32")
        x = _model(lambda words, table, places: table(words) + places(_positions(words))).layers[0](words)
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 2)(x, x))
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(_WIDTH)(keras.layers.Dense(8, "relu")(x)))
        x = keras.layers.Dense(2, "softmax")(keras.layers.GlobalAveragePooling1D()(x))
        model = keras.Model(words, x)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    texts = _texts(PARTIAL)
    return trained(ctx, model, texts, texts[:, 0] % 2)


@feature()
def sparse_inputs(ctx: Context) -> Outcome:
    """keras.Input(sparse=True) into a Dense layer, with Adam and global_clipnorm: rows that are distinct in a batch."""
    with ctx.scope():
        entry = keras.Input((6,), sparse=True)
        model = keras.Model(entry, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(entry)))
        model.compile(keras.optimizers.Adam(0.02, global_clipnorm=0.5), "mse")
    x, y = regression(PARTIAL)
    x = np.where(np.random.default_rng(8).random(x.shape) < 0.4, x, 0.0).astype("float32")
    x[3] = 0.0  # a row without any number
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(BATCH)
    return {**trained(ctx, model, data, batch_size=None), "predict": model.predict(data, verbose=0)}


@feature()
def distinct_lookups(ctx: Context) -> Outcome:
    """One table that is looked up by words, by the distinct words of a batch, twice, and by positions, with Adam."""

    def embed(words: Any, table: Any) -> Any:
        distinct, places = tf.unique(tf.reshape(words, [-1]))
        found = tf.reshape(tf.gather(table(distinct), places), [*tf.unstack(tf.shape(words)), _WIDTH])
        distinct, places = keras.ops.unique(words % 3, return_inverse=True)
        others = keras.ops.reshape(
            keras.ops.take(table(distinct), keras.ops.reshape(places, (-1,)), axis=0), (-1, 5, 4)
        )
        return table(words) + 2.0 * found - others + table(_positions(words))

    return _fit(ctx, embed, tables=1)


@feature()
def positions_of_ragged_texts(ctx: Context) -> Outcome:
    """Positions as far as the longest text of a batch, of ragged texts, with Adam."""

    class Positions(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.places = keras.layers.Embedding(_LENGTH, _WIDTH)

        def build(self, shape: Any) -> None:
            self.places.build(shape)

        def call(self, words: Any) -> Any:
            dense = words.to_tensor() if isinstance(words, tf.RaggedTensor) else words
            found = self.places(tf.range(tf.shape(dense)[1]))
            return keras.ops.sum(keras.ops.cast(dense, "float32")[..., None] * found, axis=1)  # where no word is: 0

    with ctx.scope():
        texts = keras.Input((None,), dtype="int32", ragged=True)
        model = keras.Model(texts, keras.layers.Dense(1)(Positions()(texts)))
        model.compile(keras.optimizers.Adam(0.02), "mse")
    rows = [row[: 1 + place % _LENGTH] for place, row in enumerate(_texts(PARTIAL).tolist())]
    data = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(rows, dtype=tf.int32), regression(PARTIAL)[1]))
    return trained(ctx, model, data.batch(BATCH), batch_size=None)
