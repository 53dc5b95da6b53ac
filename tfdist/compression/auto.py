"""The codec that pays: chosen for each gradient by what is measured of the network and of the codecs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy, Codec, require_codec
from tfdist.compression.codecs.casting import Float16, Whole
from tfdist.compression.codecs.power_sgd import PowerSGD
from tfdist.compression.codecs.quantized import QSGD, Natural
from tfdist.compression.error_feedback import ErrorFeedback
from tfdist.errors import ConfigError

#: which accuracies each answer to `within` allows
WITHIN: dict[str, tuple[Accuracy, ...]] = {
    "lossless": ("lossless",),
    "unbiased": ("lossless", "rounded", "unbiased"),
    "any": ("lossless", "rounded", "unbiased", "biased"),
}


@dataclass(frozen=True, kw_only=True)
class Auto(Codec):
    """For each gradient the codec with which a step is predicted to be shortest; none where none pays.

    Of codecs whose steps are predicted to differ by less than a fifth, which is what predictions are good for, the
    first of the candidates is taken, and no compression before all of them.

    Before the first step workers measure the latency and the bandwidth between them and what each codec computes, and
    all take what the first one has measured. At the beginnings of later epochs they measure the network again, as often
    as that takes a hundredth of the time at most, and choose again where it has become another one.
    Between replicas of one process nothing is compressed.

    Args:
        within: what may become of a mean gradient: "lossless", nothing; "unbiased", rounding to 16 bits or noise whose
            mean is zero; "any", also an error that is remembered and sent later.
        candidates: codecs, in the order in which they are preferred; by default float16, natural, 8 bits of QSGD, and
            PowerSGD of rank 4.

    Raises:
        ConfigError: no such class; a candidate has a momentum, which cannot come and go.

    Example:
        >>> [codec.name for codec in Auto(within="unbiased").options]
        ['none', 'float16', 'natural', 'qsgd']

    Source: the formula of the time that a codec saves is that of S. Agarwal, H. Wang, S. Venkataraman and
    D. Papailiopoulos, "On the Utility of Gradient Compression in Distributed Training Systems", 2022.
    """

    name: ClassVar[str] = "auto"
    accuracy: ClassVar[Accuracy] = "biased"
    has_memory: ClassVar[bool] = True

    within: str = "any"
    candidates: Sequence[Codec] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("within", self.within, WITHIN)
        for codec in self.candidates or ():
            require_codec("candidates", codec)
            if codec.has_momentum or isinstance(codec, Auto):
                raise ConfigError(
                    f"candidates has {codec!r}, which can only be chosen for a whole training.",
                    name="candidates",
                    received=codec,
                )
        if self.candidates is not None:
            object.__setattr__(self, "candidates", tuple(self.candidates))

    @property
    def options(self) -> list[Codec]:
        """What is chosen from: no compression, and the candidates that are accurate enough."""
        given = self.candidates or (Float16(), Natural(), QSGD(bits=8), PowerSGD(rank=4))
        fine = [codec for codec in given if codec.accuracy in WITHIN[self.within]]
        return [Whole(), *map(with_memory, fine)]

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the least that an option takes."""
        return min(codec.wire_bytes(spec, members) for codec in self.options)


def with_memory(codec: Codec) -> Codec:
    """Return a codec with `ErrorFeedback` if it is biased and remembers nothing.

    Example:
        >>> with_memory(PowerSGD(rank=4)).has_memory
        True
    """
    return ErrorFeedback(codec=codec) if codec.accuracy == "biased" and not codec.has_memory else codec
