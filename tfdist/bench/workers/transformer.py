"""The transformer that several benchmarks train, and how often."""

from dataclasses import dataclass, fields

from tfdist.errors import ConfigError
from tfdist.validation import integer

__all__ = ["SHAPE", "Transformer"]

#: what the worker processes are told of the network and its batch
SHAPE = ("blocks", "width", "heads", "length", "words", "batch_size")


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """What is measured.

    Attributes:
        blocks: of the transformer.
        width: of an activation.
        heads: of an attention.
        length: places of a text.
        words: that there are.
        batch_size: texts of a step.
        steps: per measurement.
        rounds: measurements of each arm.
    """

    blocks: int = 8
    width: int = 256
    heads: int = 4
    length: int = 64
    words: int = 64
    batch_size: int = 16
    steps: int = 3
    rounds: int = 5

    def __post_init__(self) -> None:
        for field in fields(self):
            integer(field.name, getattr(self, field.name), minimum=1)
        if self.width % self.heads:
            raise ConfigError(f"width is {self.width} for {self.heads} heads. Choose a multiple of the heads.")
