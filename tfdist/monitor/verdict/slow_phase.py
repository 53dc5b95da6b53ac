"""Find the part in which a worker is slower than others: a pure function of step parts."""

from collections.abc import Sequence

import numpy as np

from tfdist.monitor.verdict.step_parts import COMPUTING, OWN, Part

#: by which part of themselves both passes are longer where a processor is slow, and how alike the two are at least
LEAST_LONGER, ALIKE = 0.05, 0.5


def what_is_longer(mine: np.ndarray, usual: np.ndarray, own: Sequence[Part] = OWN) -> tuple[Part, float]:
    """Return the part that a worker takes longer for than the others do, and by how many seconds.

    A processor that is slower, or that others use too, makes both passes longer by the same factor, and whatever else
    computes: that is one cause, which no single part explains.

    Example:
        >>> usual = np.array([0.0, 4.0, 8.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
        >>> what_is_longer(usual + [0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], usual)[0].label
        'compute'
        >>> what_is_longer(usual + [0.0, 0.1, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], usual)[0].label
        'backward'
    """
    longer = mine - usual
    longest = max(own, key=lambda part: float(longer[part]))
    passes = [Part.FORWARD, Part.BACKWARD]
    if longest in (*passes, Part.UPDATE) and (usual[passes] > 0).all():
        factors = longer[passes] / usual[passes]
        is_alike = factors.min() >= max(LEAST_LONGER, ALIKE * factors.max())
        if longest is Part.UPDATE:  # an update that is late by itself is longer by another factor
            is_alike &= bool(ALIKE * longer[longest] <= factors.max() * usual[longest])
        if is_alike:
            computing = float(np.clip(longer[list(COMPUTING)], 0, None).sum())
            return Part.COMPUTE, computing
    return longest, float(longer[longest])
