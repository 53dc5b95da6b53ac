"""Train one model of English for authors who do not show their texts: the next character, from the ten before it.

python strategies/authors/train.py                     # compared with all texts in one place, and each author
tfdist federated simulate strategies/authors/train.py  # the rounds of `app`, with curves
"""

import argparse
import ast
from collections.abc import Iterator

import keras
import numpy as np

from tfdist.federated import App, FedAvg, Participation, simulate
from tfdist.testing.installed_texts import python_files

SEED = 17
#: packages of Python and of Keras; each is an author, whose texts are its docstrings
AUTHORS = ("keras", "numpy", "rich", "asyncio", "email", "unittest", "http", "logging")
WINDOW = 10  # characters
CHARACTERS = [chr(code) for code in range(32, 127)]  # all others are spaces


def docstrings(package: str) -> Iterator[str]:
    """The docstrings of a package's modules, classes and functions, in the order of its files."""
    for path in (path for path in python_files(package) if "test" not in path.stem):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def text_of(package: str, length: int) -> np.ndarray:
    """The first characters of an author's texts, as numbers."""
    found, size = [], 0
    for one in docstrings(package):
        found.append(one)
        size += len(one)
        if size >= length:
            break
    codes = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([codes.get(one, 0) for one in " ".join(found)[:length]], np.int32)


def examples(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each stretch of characters with the one that follows."""
    windows = np.lib.stride_tricks.sliding_window_view(text, WINDOW + 1)
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, -1])


def make_model() -> keras.Model:
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential(
        [
            keras.Input((WINDOW,), dtype="int32"),
            keras.layers.Embedding(len(CHARACTERS), 16),
            keras.layers.Flatten(),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(len(CHARACTERS)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    return model


def texts(length: int = 12_000) -> App:
    """An author keeps the last tenth of its texts for the test."""
    parts = {author: text_of(author, length) for author in AUTHORS}
    cut = {author: len(text) * 9 // 10 for author, text in parts.items()}
    tests = [examples(text[cut[author] :]) for author, text in parts.items()]
    return App(
        make_model,
        {author: examples(text[: cut[author]]) for author, text in parts.items()},
        FedAvg(epochs=1, batch_size=64),
        test_data=tuple(np.concatenate(arrays) for arrays in zip(*tests, strict=True)),
        participation=Participation(evaluate_every=5),
    )


app = texts()


def compare(found: App, rounds: int) -> None:
    """Print the accuracy, compared with a model that has all texts, and with those of single authors."""
    federated = simulate(found, rounds=rounds, seed=SEED).rounds[-1].evaluation["accuracy"]
    data = [found.data_of(author).nest for author in found.names()]
    alone = [accuracy(found, *part, rounds) for part in data]
    print(f"{len(data)} authors with {', '.join(f'{len(y):,}' for _, y in data)} characters")
    print(f"  federated, {rounds} rounds    {federated:.3f}")
    print(f"  all texts in one place  {accuracy(found, *map(np.concatenate, zip(*data, strict=True)), rounds):.3f}")
    print(f"  each author alone       {np.mean(alone):.3f} on average, {min(alone):.3f} to {max(alone):.3f}")


def accuracy(found: App, x: np.ndarray, y: np.ndarray, epochs: int) -> float:
    """Train with only these texts, for as long as the federated model; the test has texts of all authors."""
    model = found.make_model()
    model.fit(x, y, batch_size=found.algorithm.batch_size, epochs=epochs, verbose=0)
    return model.evaluate(*found.test_data, batch_size=1024, verbose=0, return_dict=True)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=12_000, help="characters per author; default: %(default)s")
    options = parser.parse_args()
    compare(texts(options.length), options.rounds)


if __name__ == "__main__":
    main()
