"""Compare the methods of train.py: the accuracy on the test data after the same number of epochs, over several seeds.

python strategies/large_batch/compare.py                                  # half an hour on 2 cores
python strategies/large_batch/compare.py --data cancer --seeds 2 --rates 2 --epochs 5

Every method that has a rate of its own searches it: the same number of rates, each 3.2 times (the square root of ten)
the one before, each trained with two seeds that the comparison does not use. The best has the highest mean accuracy on
the validation data, and of equals the lowest mean loss. "none" and "linear" are rules: their rate follows from
that of the small batch, and is not searched. No number of the test data decides anything.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import keras
import train
from matplotlib.figure import Figure

FIRST_RATE = {"base": 1e-3, "sgd": 1e-2, "lars": 3.2e-2, "lamb": 1e-3}
SEARCH_SEEDS = (1000, 1001)
CHANCE = 0.55  # what is below was not learnt
TITLES = {"digits": "Handwritten digits", "cancer": "Breast cancer Wisconsin"}


def grid(method: str, rates: int) -> list[float]:
    """Return the rates that are tried; fewer are taken from the middle.

    Example:
        >>> grid("base", 6)
        [0.001, 0.0032, 0.01, 0.032, 0.1, 0.32]
    """
    all_six = [float(f"{FIRST_RATE[method] * 10 ** (index / 2):.2g}") for index in range(6)]
    first = (6 - rates) // 2
    return all_six[first : first + rates]


def best_rate(
    data: str, method: str, *, seeds: int, rates: int, epochs: int
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the rate that the validation data prefer, and accuracy and loss there with each."""
    tried = {}
    for rate in grid(method, rates):
        keras.utils.clear_session()
        runs = [train.train(data, method, epochs=epochs, seed=seed, rate=rate) for seed in SEARCH_SEEDS[:seeds]]
        losses = [run[1] if math.isfinite(run[1]) else math.inf for run in runs]
        tried[rate] = (statistics.mean(run[0] for run in runs), statistics.mean(losses))
        print(f"{data} {method}: rate {rate:g}, validation {tried[rate][0]:.4f}, loss {tried[rate][1]:.4f}", flush=True)
    found = max(tried, key=lambda rate: (tried[rate][0], -tried[rate][1]))
    return found, {f"{rate:g}": values for rate, values in tried.items()}


def compare(data: str, *, seeds: int, rates: int, epochs: int) -> dict[str, Any]:
    """Return rate, what was tried, and test accuracies of every method."""
    report: dict[str, Any] = {}
    chosen: dict[str, float] = {}
    for method in train.METHODS:
        tried: dict[str, tuple[float, float]] = {}
        if method == "none":
            rate = chosen["base"]
        elif method == "linear":
            rate = train.scale_learning_rate(chosen["base"], 1, train.TIMES, rule="linear")
        else:
            rate, tried = best_rate(data, method, seeds=seeds, rates=rates, epochs=epochs)
        chosen[method] = rate
        accuracies = []
        for seed in range(seeds):
            keras.utils.clear_session()
            accuracies.append(train.train(data, method, epochs=epochs, seed=seed, rate=rate)[2])
        report[method] = {"rate": rate, "accuracies": accuracies, "search": tried}
        print(f"{data} {method}: rate {rate:g}, test {statistics.mean(accuracies):.4f}", flush=True)
    return report


def table(data: str, report: dict[str, Any]) -> str:
    """Return the comparison as a table of Markdown."""
    batch = train.BASE_BATCH[data]
    lines = [f"| {TITLES[data]} | batch | rate | mean | min | max |", "|---|---|---|---|---|---|"]
    for method, text in train.METHODS.items():
        one = report[method]
        found, size = one["accuracies"], batch * (1 if method == "base" else train.TIMES)
        numbers = f"{statistics.mean(found):.4f} | {min(found):.4f} | {max(found):.4f}"
        lines.append(f"| {text} | {size} | {one['rate']:.3g} | {numbers} |")
    return "\n".join(lines)


def draw(reports: dict[str, dict[str, Any]], path: Path, *, epochs: int) -> None:
    """Draw every seed as a point and the mean as a bar, a panel for each data set."""
    figure = Figure(figsize=(6 * len(reports), 4.2), dpi=150, layout="constrained")
    for index, (data, report) in enumerate(reports.items()):
        axes = figure.add_subplot(1, len(reports), index + 1)
        for place, method in enumerate(reversed(train.METHODS)):
            found = report[method]["accuracies"]
            colour = "#9a9a9a" if method == "base" else "#1f6fb4"
            mean = statistics.mean(found)
            if mean < CHANCE:  # would press all others into a corner
                axes.annotate(f"{mean:.2f}: diverges", (0.02, place), xycoords=("axes fraction", "data"), va="center")
                continue
            axes.plot(found, [place] * len(found), "o", color=colour, alpha=0.5)
            axes.plot([mean] * 2, [place - 0.3, place + 0.3], color="#222222", linewidth=2)
        axes.set_yticks(range(len(train.METHODS)), list(reversed(train.METHODS)))
        axes.set_xlabel("test accuracy; a point per seed, a bar for the mean")
        base = train.BASE_BATCH[data]
        axes.set_title(f"{TITLES[data]}: batch {base} and {train.TIMES * base}, {epochs} epochs", loc="left")
        axes.grid(color="#e4e4e4")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(TITLES), action="append", help="default: both")
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--rates", type=int, choices=range(1, 7), default=6, help="of a search; default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs", "large_batch"), help="default: %(default)s")
    options = parser.parse_args()
    settings = {"seeds": options.seeds, "rates": options.rates, "epochs": options.epochs}
    options.output.mkdir(parents=True, exist_ok=True)
    reports: dict[str, dict[str, Any]] = {}
    for data in options.data or list(TITLES):
        reports[data] = compare(data, **settings)
        text = json.dumps({"settings": settings, "data": reports}, indent=2) + "\n"
        (options.output / "comparison.json").write_text(text, encoding="utf-8")
    for data, report in reports.items():
        print(f"\n{table(data, report)}")
    draw(reports, options.output / "comparison.png", epochs=options.epochs)
    print(f"\nwrote {options.output / 'comparison.png'} and comparison.json", flush=True)


if __name__ == "__main__":
    main()
