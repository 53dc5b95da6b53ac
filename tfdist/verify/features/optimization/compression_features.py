"""`DistributedOptimizer(compression=...)`: codecs at the settings where what they lose has a bound."""

from typing import Any

import tfdist.optimizers
from tfdist.verify.feature import Context, Outcome, feature
from tfdist.verify.feature_tasks import EVEN, compiled, deep, losses_and_weights, regression, sgd, trained

# As for `wire_float16`: 2^-11 of a gradient on each replica and once more of the sum; bfloat16 has three bits less.
_FLOAT16, _BFLOAT16 = 2e-3, 1e-2
# The thin factors of a matrix are found and multiplied again in float32.
_FACTORS = 1e-4


def _plain(ctx: Context) -> Outcome:
    model = compiled(ctx, deep, lambda: sgd(learning_rate=0.02))
    return losses_and_weights(trained(ctx, model, *regression(EVEN)))


def _compressed(ctx: Context, codec: Any, *, momentum: float = 0.9) -> Outcome:
    def optimizer() -> Any:
        inner = sgd(learning_rate=0.02, momentum=momentum)
        return tfdist.optimizers.DistributedOptimizer(inner, compression=codec)

    return losses_and_weights(trained(ctx, compiled(ctx, deep, optimizer), *regression(EVEN)))


@feature(reference=_plain, tolerance=_FLOAT16)
def compression_float16(ctx: Context) -> Outcome:
    """compression=Float16(), beside the plain optimizer."""
    from tfdist.compression import Float16

    return _compressed(ctx, Float16())


@feature(reference=_plain, tolerance=_BFLOAT16)
def compression_bfloat16(ctx: Context) -> Outcome:
    """compression=BFloat16(), beside the plain optimizer."""
    from tfdist.compression import BFloat16

    return _compressed(ctx, BFloat16())


@feature(reference=_plain, may_refuse=True)
def compression_random_k_of_all(ctx: Context) -> Outcome:
    """compression=RandomK(density=1.0), which sends every number, beside the plain optimizer."""
    from tfdist.compression import RandomK

    return _compressed(ctx, RandomK(density=1.0, min_saving=0.1))


@feature(reference=_plain, may_refuse=True, tolerance=_FACTORS)
def compression_power_sgd_of_full_rank(ctx: Context) -> Outcome:
    """compression=PowerSGD(rank=64), more than any matrix has, beside the plain optimizer."""
    from tfdist.compression import PowerSGD

    return _compressed(ctx, PowerSGD(rank=64, min_saving=0.1))


@feature(reference=_plain, may_refuse=True)
def compression_dgc_of_all(ctx: Context) -> Outcome:
    """compression=DGC(density=1.0) with the momentum, beside SGD with it."""
    from tfdist.compression import DGC

    return _compressed(ctx, DGC(density=1.0, momentum=0.9, min_saving=0.1), momentum=0.0)
