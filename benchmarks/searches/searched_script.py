"""The script that `tfdist search` runs in the benchmark of searches: `searched_script.py DATA EPOCHS ENDS`."""

import sys

import tfdist
from benchmarks.searches import digits_trial


def main(data: str, epochs: str, ends: str) -> None:
    hp = tfdist.search.parameters()
    model = digits_trial.build(
        hp.Choice("units", list(digits_trial.UNITS)),
        hp.Float("dropout", *digits_trial.DROPOUT),
        hp.Float("rate", *digits_trial.RATE, sampling="log"),
    )
    model.fit(**digits_trial.read(data), epochs=int(epochs), callbacks=tfdist.search.callbacks(), verbose=0)
    digits_trial.note(ends)


if __name__ == "__main__":
    main(*sys.argv[1:])
