"""Fine-tune a language model by LoRA: workers reduce only the gradients of small matrices beside the kernels.

python strategies/low_rank/train.py
tfdist run --strategy multi-worker -n 2 strategies/low_rank/train.py
tfdist run --strategy multi-worker -n 2 strategies/low_rank/train.py --rank 0    # all weights, to compare

A small GPT learns the help texts of Python first, on each worker. Then its kernels are frozen, and Keras' `enable_lora`
adds two matrices of a low rank to each. These learn the docstrings of a package.
"""

import argparse
import pydoc_data.topics

import keras
import numpy as np

import tfdist
from tfdist.testing.installed_texts import docstrings

SEED, CHARACTERS = 17, 96  # the printable characters, and one for all others


def windows(text: str, context: int, most: int) -> np.ndarray:
    """Return rows of numbers of characters, which have one more than the context: the last one to predict."""
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32) - 31
    codes = np.where((codes < 0) | (codes >= CHARACTERS), 0, codes)
    return codes[: len(codes) // (context + 1) * (context + 1)].reshape(-1, context + 1)[:most]


def gpt(context: int, blocks: int, width: int, heads: int) -> keras.Model:
    layers = keras.layers
    characters = keras.Input((context,), dtype="int32")
    x = layers.Embedding(CHARACTERS, width)(characters)
    x = x + layers.Embedding(context, width)(keras.ops.arange(context))
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal, use_causal_mask=True)
        x = x + layers.Dense(width)(layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(characters, layers.Dense(CHARACTERS)(layers.LayerNormalization()(x)))


def adapt(model: keras.Model, rank: int) -> None:
    """Let the kernels of attentions and between them learn by two matrices of this rank; freeze all other weights."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.MultiHeadAttention):
            for part in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
                part.enable_lora(rank)
        elif isinstance(layer, keras.layers.Dense):
            layer.enable_lora(rank)
        else:
            layer.trainable = False


def fit(model: keras.Model, rows: np.ndarray, rate: float, epochs: int, batch: int) -> list[float]:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), loss, weighted_metrics=["accuracy"])
    return model.fit(rows[:, :-1], rows[:, 1:], batch_size=batch, epochs=epochs, verbose=2).history["loss"]


def main() -> None:
    options = parse()
    strategy, cluster = tfdist.strategies.from_environment(), tfdist.cluster.from_environment()
    keras.utils.set_random_seed(SEED)
    topics = pydoc_data.topics.topics
    first = windows("\n".join(topics[name] for name in sorted(topics)), options.context, options.rows)
    rows = windows("\n".join(docstrings(options.package)), options.context, options.rows)
    train, test = rows[: len(rows) * 9 // 10], rows[len(rows) * 9 // 10 :]
    with strategy.scope():
        model = gpt(options.context, options.blocks, options.width, options.heads)
        fit(model, first, options.learning_rate, options.first_epochs, options.batch_size)
        before = model.evaluate(test[:, :-1], test[:, 1:], verbose=0, return_dict=True)
        if options.rank:
            adapt(model, options.rank)
        losses = fit(model, train, options.learning_rate, options.epochs, options.batch_size)
    after = model.evaluate(test[:, :-1], test[:, 1:], verbose=0, return_dict=True)
    if cluster.is_chief:
        sizes = [sum(int(np.prod(one.shape)) for one in some) for some in (model.trainable_variables, model.variables)]
        steps = int(model.optimizer.iterations.numpy())
        print(f"trained              {sizes[0]:,} of {sizes[1]:,} numbers, {steps:,} steps")
        print("losses              ", *(f"{loss:.5f}" for loss in losses))
        print(f"test loss            {before['loss']:.4f} before, {after['loss']:.4f} after")
        print(f"test accuracy        {before['accuracy']:.4f} before, {after['accuracy']:.4f} after", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default="numpy", help="package with the docstrings; default: %(default)s")
    for name, default, told in (
        ("--rank", 8, "rank of the matrices; 0 trains all weights"),
        ("--first-epochs", 2, "passes over the help texts"),
        ("--epochs", 2, "passes over the docstrings"),
        ("--batch-size", 64, "rows of text, over all workers"),
        ("--rows", 4000, "most rows of each text"),
        ("--context", 64, "visible characters"),
        ("--blocks", 2, "blocks of the model"),
        ("--width", 96, "width of an activation"),
        ("--heads", 4, "heads of an attention"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{told}; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
