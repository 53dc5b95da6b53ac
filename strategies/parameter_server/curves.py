"""Curves of the recommender's training: loss and recall over epochs, and the staleness of gradients."""

from pathlib import Path


def draw(history: dict[str, list[float]], popular: float, staleness: dict[int, int], *, k: int, path: Path) -> None:
    """Draw loss and recall over epochs, and how stale gradients were."""
    from matplotlib.figure import Figure  # of the extra `demo`; the training needs no pictures

    figure = Figure(figsize=(12, 3.6), dpi=150, layout="constrained")
    loss, recall, stale = figure.subplots(1, 3)
    epochs = range(1, len(history["loss"]) + 1)
    loss.plot(epochs, history["loss"], "o-", color="#1f5f9e")
    loss.set(title="Loss (nats)", xlabel="epoch", xticks=epochs)
    recall.plot(epochs, history["recall"], "o-", color="#1f5f9e", label="recommender")
    recall.axhline(popular, color="#d1602b", linestyle="--", label="most popular")
    recall.set(title=f"Recall@{k} of what was held out", xlabel="epoch", xticks=epochs, ylim=0)
    recall.legend(frameon=False)
    stale.bar(list(staleness), list(staleness.values()), color="#1f5f9e")
    stale.set(title="Staleness of gradients", xlabel="updates since the weights were read", ylabel="gradients")
    stale.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path)
