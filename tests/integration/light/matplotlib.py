"""Not matplotlib: see the package around this file."""

raise ImportError("left out by tests/integration/light")
