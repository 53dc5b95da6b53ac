"""The cost of a whole training, from its steps: hours, price, saves and failures. Loads no TensorFlow."""

import math
from dataclasses import dataclass

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.scaling.save_interval import Failures, best_interval, useful_part

_HOUR = 3600.0
#: a job that makes less of its time useful does not finish
LEAST_USEFUL = 0.01


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a device, and its failures.

    Attributes:
        hourly: the price of a device for an hour.
        factor: the factor of that price: 1 on demand, less for spot capacity.
        failures: the failures of one device; None if it never fails.
    """

    hourly: float = 0.0
    factor: float = 1.0
    failures: Failures | None = None

    def __post_init__(self) -> None:
        validation.number("price", self.hourly, minimum=0)
        validation.number("the factor of the price", self.factor, above=0)

    @classmethod
    def spot(cls, text: str, *, hourly: float) -> "Price":
        """Make the price that a text describes, such as 0.6:mtbf=4h,restart=3m,shape=0.8.

        Args:
            text: the factor of the price, and the failures.
            hourly: the price on demand for an hour.
        Returns:
            The price of spot capacity.
        Raises:
            ConfigError: the text describes no price.

        Example:
            >>> found = Price.spot("0.6:mtbf=4h", hourly=2.0)
            >>> found.factor, found.failures.mtbf_seconds, found.failures.restart_seconds
            (0.6, 14400.0, 120.0)
        """
        factor, _, rest = text.partition(":")
        pairs = [part.partition("=") for part in rest.split(",") if part]
        given = {key.strip(): value for key, _, value in pairs}
        write = "Write one as 0.6:mtbf=4h: the part of the price, then the mean time between failures of a device."
        if "mtbf" not in given or given.keys() - {"mtbf", "restart", "shape"}:
            raise ConfigError(f"--spot is {text!r}. {write} restart=2m and shape=1 may follow.", name="--spot")
        try:
            part, shape = float(factor), float(given.get("shape", "1"))
        except ValueError as error:
            raise ConfigError(f"--spot is {text!r}: {error}. {write}", name="--spot") from error
        failures = Failures(
            mtbf_seconds=validation.as_seconds(given["mtbf"], name="mtbf of --spot"),
            restart_seconds=validation.as_seconds(given.get("restart", "2m"), name="restart of --spot"),
            shape=shape,
        )
        return cls(hourly=hourly, factor=part, failures=failures)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a whole training.

    Attributes:
        seconds: the time of training, with saves and the steps that failures repeat.
        price: the price of all devices for that time.
        useful: the part of the time that is training whose result is kept.
        interval_seconds: the time of training between two saves; None if nothing fails.
    """

    seconds: float
    price: float
    useful: float
    interval_seconds: float | None


def cost(training_seconds: float, devices: int, price: Price, *, save_seconds: float = 1.0) -> Cost:
    """Return the cost of a training that takes this many seconds if nothing fails.

    Example:
        >>> cost(100 * 3600.0, 8, Price(hourly=2.0)).price
        1600.0
    """
    useful, interval = 1.0, None
    if price.failures is not None:
        failures = price.failures.of_workers(devices)
        interval = best_interval(save_seconds, failures)
        useful = useful_part(interval, save_seconds, failures)
    seconds = training_seconds / useful if useful >= LEAST_USEFUL else math.inf
    paid = price.hourly * price.factor
    return Cost(
        seconds=seconds,
        price=devices * paid * seconds / _HOUR if paid else 0.0,
        useful=useful,
        interval_seconds=interval,
    )


def more_examples(batch: float, of: float, noise_scale: float | None) -> float:
    """Return the factor by which one batch size needs more examples than another to reach the same loss.

    It is (1 + batch / scale) / (1 + of / scale), with a learning rate tuned for each (McCandlish et al., 2018).

    Example:
        >>> more_examples(2000, 1000, 1000.0), more_examples(2000, 1000, None)
        (1.5, 1.0)
    """
    return 1.0 if noise_scale is None else (noise_scale + batch) / (noise_scale + of)
