"""`DistributedOptimizer(compression=...)`: codecs at the settings where what they lose has a bound."""

from collections.abc import Callable
from typing import Any

import tfdist.optimizers
from tfdist import compression
from tfdist.verify.feature import Context, Outcome
from tfdist.verify.feature_tasks import EVEN, compiled, deep, losses_and_weights, regression, row, sgd, trained

# As for `wire_float16`: 2^-11 of a gradient on each replica and once more of the sum; bfloat16 has three bits less.
_FLOAT16, _BFLOAT16 = 2e-3, 1e-2
# The thin factors of a matrix are found and multiplied again in float32.
_FACTORS = 1e-4


def _plain(ctx: Context) -> Outcome:
    model = compiled(ctx, deep, lambda: sgd(learning_rate=0.02))
    return losses_and_weights(trained(ctx, model, *regression(EVEN)))


def _row(name: str, summary: str, codec: Callable[[], Any], *, momentum: float = 0.9, **options: Any) -> None:
    def optimizer() -> Any:
        inner = sgd(learning_rate=0.02, momentum=momentum)
        return tfdist.optimizers.DistributedOptimizer(inner, compression=codec())

    def train(ctx: Context) -> Outcome:
        return losses_and_weights(trained(ctx, compiled(ctx, deep, optimizer), *regression(EVEN)))

    row(f"compression_{name}", f"compression={summary}", train, reference=_plain, **options)


_row("float16", "Float16(), beside the plain optimizer", lambda: compression.Float16(), tolerance=_FLOAT16)
_row("bfloat16", "BFloat16(), beside the plain optimizer", lambda: compression.BFloat16(), tolerance=_BFLOAT16)
_row(
    "random_k_of_all",
    "RandomK(density=1.0), which sends every number, beside the plain optimizer",
    lambda: compression.RandomK(density=1.0, min_saving=0.1),
    may_refuse=True,
)
_row(
    "power_sgd_of_full_rank",
    "PowerSGD(rank=64), more than any matrix has, beside the plain optimizer",
    lambda: compression.PowerSGD(rank=64, min_saving=0.1),
    may_refuse=True,
    tolerance=_FACTORS,
)
_row(
    "dgc_of_all",
    "DGC(density=1.0) with the momentum, beside SGD with it",
    lambda: compression.DGC(density=1.0, momentum=0.9, min_saving=0.1),
    momentum=0.0,
    may_refuse=True,
)
