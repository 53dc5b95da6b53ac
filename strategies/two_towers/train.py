"""Find a function by its description: one tower for the words of a description, one for the parts of a name.

python strategies/two_towers/train.py
tfdist run --strategy parameter-server -n 2 --parameter-servers 2 strategies/two_towers/train.py
tfdist run --strategy model-parallel -n 2 --mesh batch=1,model=2 strategies/two_towers/train.py

The pairs are from the functions of installed packages that have a docstring. Tables are on parameter servers, or
divided over the devices of a mesh, or whole on each worker. Each example is trained against names that are drawn anew
in each epoch.
"""

import argparse
import zlib
from pathlib import Path

import keras
import tensorflow as tf
from described_functions import PARTS, SEED, WORDS, by_overlap, functions, numbered, vocabulary

import tfdist

CANDIDATES = 100
LAYOUTS = {".*table.*embeddings": ("model", None)}  # rows of a table are in parts; unnamed weights are whole


def build(size: int, dim: int) -> keras.Model:
    """Return a model from a description and candidates for its name, of which the first is right, to their scores.

    A tower adds two terms: the mean of the words' rows in a table that both towers share, and a layer over the mean in
    its own table. So training starts from the words that both sides have in common, and learns the others.
    """
    layers, ops = keras.layers, keras.ops
    both = layers.Embedding(size, dim, keras.initializers.RandomNormal(stddev=dim**-0.5), name="both_table")

    def tower(numbers: keras.KerasTensor, name: str) -> keras.KerasTensor:
        real = ops.cast(numbers > 0, "float32")[..., None]
        share = real / ops.maximum(ops.sum(real, axis=-2, keepdims=True), 1.0)
        common, own = (
            ops.sum(table(numbers) * share, axis=-2)
            for table in (both, layers.Embedding(size, dim, name=f"{name}_table"))
        )
        learnt = layers.Dense(dim, kernel_initializer="zeros", name=f"{name}_dense")(own)
        return layers.UnitNormalization()(common + learnt)

    description = keras.Input((WORDS,), dtype="int32", name="description")
    names = keras.Input((None, PARTS), dtype="int32", name="names")
    scores = layers.Dot(axes=(2, 1))([tower(names, "name"), tower(description, "description")])
    return keras.Model([description, names], 12.0 * scores)


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment(layout_map=LAYOUTS)
    keras.utils.set_random_seed(SEED)
    pairs = functions(options.packages)
    cut = len(pairs) * 9 // 10
    texts, names = ([pair[side] for pair in pairs] for side in (0, 1))
    numbers = vocabulary(texts[:cut] + names[:cut])
    description, name = numbered(texts, numbers, WORDS), numbered(names, numbers, PARTS)
    folder = options.output / f"data-{zlib.crc32(description):08x}"  # differs with other packages

    def batches(part: str, rows: slice, negatives: int, size: int) -> tfdist.data.Reading:
        table = tf.constant(name[rows])

        def drawn(example: dict[str, tf.Tensor], seed: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            others = tf.random.stateless_uniform([negatives], seed, maxval=len(table), dtype=tf.int32)
            candidates = tf.concat([example["name"][tf.newaxis], tf.gather(table, others)], axis=0)
            return {"description": example["description"], "names": candidates}, tf.constant(0)

        tfdist.data.write({"description": description[rows], "name": name[rows]}, folder / part, exists="keep")
        order = "full" if part == "train" else "none"
        return tfdist.data.read(
            folder / part, global_batch_size=size, seed=SEED, order=order, tail="keep", augment=drawn
        )

    train = batches("train", slice(cut), options.negatives, options.batch_size)
    test = batches("test", slice(cut, None), CANDIDATES - 1, options.batch_size)
    with strategy.scope():
        model = build(-(-(len(numbers) + 2) // 64) * 64, options.dim)  # a mesh may divide it
        found = [keras.metrics.SparseTopKCategoricalAccuracy(k, name=f"top_{k}") for k in (1, 10)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adagrad(options.learning_rate), loss, metrics=found)
    history = model.fit(train, shuffle=False, epochs=options.epochs, verbose=2).history
    tested = model.evaluate(test, verbose=0, return_dict=True)
    if tfdist.cluster.from_environment().is_chief:
        print(f"training             {cut:,} functions, {len(numbers):,} words")
        print("losses              ", *(f"{loss:.5f}" for loss in history["loss"]))
        print(f"right name of {CANDIDATES}    first {tested['top_1']:.4f}, of ten {tested['top_10']:.4f}")
        overlap = [by_overlap(pairs[cut:], CANDIDATES, k) for k in (1, 10)]
        print(f"by common words      first {overlap[0]:.4f}, of ten {overlap[1]:.4f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = ["keras", "numpy", "scipy", "sklearn"]
    parser.add_argument("--packages", nargs="+", default=defaults, help="packages with the code; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=128, help="global batch size; default: %(default)s")
    parser.add_argument("--negatives", type=int, default=30, help="random wrong names; default: %(default)s")
    parser.add_argument("--dim", type=int, default=64, help="size of vectors; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=0.03, help="rate of Adagrad; default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/two_towers", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
