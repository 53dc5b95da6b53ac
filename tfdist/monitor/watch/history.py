"""The recorded steps of a job before a page was opened, as points of curves."""

from typing import Any

import numpy as np

from tfdist.monitor.verdict.step_parts import Part, Timeline

#: points of a curve
POINTS = 150


def history(recorded: Timeline | None, points: int = POINTS) -> dict[str, Any]:
    """Return curves of steps that were recorded, as what JSON can hold.

    Example:
        >>> history(None)
        {'rate': [], 'loss': [], 'parts': []}
    """
    if recorded is None or not len(recorded.steps):
        return {"rate": [], "loss": [], "parts": []}
    places = np.array_split(np.arange(len(recorded.steps)), min(points, len(recorded.steps)))
    return {
        "rate": [[_number(1.0 / max(one, 1e-9)) for one in recorded.step[place].mean(axis=0)] for place in places],
        "loss": [[_number(one) for one in recorded.loss[place[-1]]] for place in places],
        "parts": [{part.label: float(recorded.parts[place, :, part].mean()) for part in Part} for place in places],
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
