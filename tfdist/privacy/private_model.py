"""`make_private`: a Keras model whose `fit` is differentially private."""

import contextlib
import secrets
from typing import Any

import keras

from tfdist import validation
from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.data import PoissonBatches
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.gradients.reduction.reducer import ReducesItself
from tfdist.privacy import accounting
from tfdist.privacy.accounting import NoisySteps
from tfdist.privacy.budget import Budget
from tfdist.privacy.private_step import Noise, PrivateStep
from tfdist.strategies import MirroredStrategy, MultiWorkerMirroredStrategy, RingStrategy
from tfdist.training.strategy_mixin import KerasTraining

_NAME = "_tfdist_privacy"


def make_private(
    model: keras.Model,
    *,
    epsilon: float,
    delta: float,
    clip: float = 1.0,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    seed: int | None = None,
) -> keras.Model:
    """Make `fit` of one compiled model differentially private: (epsilon, delta) for each example of its data.

    A step clips the gradient of each example to the norm ``clip``, adds Gaussian noise to the sum, once over all
    replicas and workers, and divides by the expected size of a batch. Batches are Poisson samples
    (`tfdist.data.poisson`). The history has ``epsilon``, the epsilon spent until the end of each epoch. It is computed
    by privacy loss distributions, for data sets of which one has one example more.

    Guaranteed: the weights reveal no more about an example than (epsilon, delta) allows. Training that would spend more
    is refused before it begins. Not covered: the metrics in the history, which are exact; validation data; choices that
    are made by training several times.

    Args:
        model: a compiled Keras model that trains by Keras' own step, without states that depend on examples.
        epsilon: the epsilon of the budget.
        delta: the probability with which the budget may fail, less than 1 / examples.
        clip: the largest norm of an example's gradient over all weights.
        noise_multiplier: the standard deviation of the noise of the sum, in units of ``clip``. Default: the smallest
            with which the planned steps spend the budget.
        steps: the number of planned steps, over all calls of `fit`. Default: the steps of the first call.
        seed: the seed of the noise, for tests: anyone who knows it can remove the noise. Default: secret random bits.
    Returns:
        The model itself.
    Raises:
        ConfigError: an argument has an invalid value, or the model is not compiled.
        UnsupportedError: in `fit`: the data are no Poisson samples; or the model, its optimizer or its strategy would
            compute something else.
        PrivacyBudgetError: in `fit`: it would spend more than epsilon.
        MissingDependencyError: the extra ``privacy`` is not installed.

    Example:
        >>> import numpy as np, keras, tfdist
        >>> x, y = np.random.default_rng(1).normal(size=(200, 4)).astype("float32"), np.arange(200) % 2
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> model = tfdist.privacy.make_private(model, epsilon=3, delta=1e-3)
        >>> batches = tfdist.data.poisson((x, y), global_batch_size=20)
        >>> history = model.fit(batches, epochs=2, verbose=0)
        >>> [round(one, 1) for one in history.history["epsilon"]]
        [2.2, 3.0]
    """
    if not isinstance(model, keras.Model):
        raise ConfigTypeError(
            f"model is {validation.shown(model)}; it must be a keras.Model.",
            name="model",
            received=validation.shown(model),
        )
    budget = Budget(
        validation.number("epsilon", epsilon, above=0.0, hint="Pass the budget, such as 3."),
        accounting.checked_delta(delta),
    )
    if noise_multiplier is not None:
        accounting.checked_noise(noise_multiplier)
    if steps is not None:
        validation.integer("steps", steps, minimum=1)
    if seed is not None:
        validation.integer("seed", seed, minimum=0, maximum=2**62)
    if getattr(model, _NAME, None) is not None:
        raise ConfigError(
            f"model {model.name!r} is private already; a second budget would forget what the first has spent. Make a "
            "new model, or say the whole budget at once.",
            name="model",
        )
    validation.number("clip", clip, above=0.0)
    private = _Private(model, budget, float(clip), noise_multiplier, steps, seed)
    vars(model).update({_NAME: private, "fit": private.fit, "train_on_batch": private.refuse_batch})
    return model


class _Private:
    """The privacy settings, the noise and the methods of one private model."""

    def __init__(
        self,
        model: keras.Model,
        budget: Budget,
        clip: float,
        noise_multiplier: float | None,
        steps: int | None,
        seed: int | None,
    ) -> None:
        self._model, self.budget, self._clip, self._noise_multiplier = model, budget, clip, noise_multiplier
        self._steps, self._seed = steps, seed
        self._noise: Noise | None = None
        self._counter: keras.Variable | None = None

    def refuse_batch(self, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            "train_on_batch of a private model does not know how its batch was drawn, so its privacy cannot be "
            "accounted for. Use fit with tfdist.data.poisson(...).",
            name="train_on_batch",
        )

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        model = self._model
        batches = _required(model, x)
        if args:
            raise ConfigTypeError(
                f"fit of a private model takes the data and {len(args)} more arguments by position; name them, such as "
                "epochs=10.",
                name="fit",
                received=len(args),
            )
        kwargs.setdefault("shuffle", False)  # else Keras says that it does not shuffle a dataset
        epochs = int(kwargs.get("epochs", 1))
        steps = int(kwargs.get("steps_per_epoch") or batches.steps)
        planned = steps * (epochs - int(kwargs.get("initial_epoch", 0)))
        self._prepare(batches, planned)
        self.require(planned, batches.rate)
        callbacks = kwargs.pop("callbacks", None) or []
        callbacks = [*callbacks.callbacks] if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
        callbacks = keras.tree.flatten(callbacks)
        account = _Account(self, steps, epochs, batches.rate)
        return type(model).fit(model, x, callbacks=[account, *callbacks], **kwargs)

    def _prepare(self, batches: PoissonBatches, planned: int) -> None:
        """Decide on the noise, and give the model its private step."""
        model = self._model
        rate = batches.rate
        if self._noise_multiplier is None:
            self._noise_multiplier = self.budget.noise_multiplier(rate, self._steps or max(1, planned))
        key = secrets.randbits(62) if self._seed is None else self._seed
        noise = Noise(self._clip, self._noise_multiplier, batches.rate * batches.examples, key)
        if self._counter is None:
            with _scope(model):
                self._counter = keras.Variable(0, dtype="int64", trainable=False, name="private_steps")
            vars(model)["train_step"] = PrivateStep(model, self.noise, self._counter)
        if noise != self._noise:  # which is in the graph of a step
            self._noise = noise
            model.train_function = None

    def noise(self) -> Noise:
        assert self._noise is not None
        return self._noise

    def require(self, planned: int, rate: float) -> None:
        """Raise `PrivacyBudgetError` if this number of further steps would spend more than is left."""
        self.count_updates(rate)
        self.budget.require(NoisySteps(self.noise().noise_multiplier, rate, planned))

    def count_updates(self, rate: float) -> None:
        """Count the updates that a restored optimizer has made in another process."""
        optimizer = self._model.optimizer
        self.take_to(int(optimizer.iterations.numpy()) * (optimizer.gradient_accumulation_steps or 1), rate)

    def take_to(self, steps: int, rate: float) -> None:
        """Record the total number of steps that this model has taken."""
        if steps > self.budget.steps:
            taken = NoisySteps(self.noise().noise_multiplier, rate, steps - self.budget.steps)
            self.budget = self.budget.after(taken)

    def begin_at(self, steps: int) -> None:
        """Set the step's number, so that its noise differs from that of all other steps."""
        assert self._counter is not None
        self._counter.assign(steps)


class _Account(keras.callbacks.Callback):
    """A callback that counts steps, refuses those that the budget does not have, and puts epsilon in the logs."""

    def __init__(self, private: _Private, steps: int, epochs: int, rate: float) -> None:
        super().__init__()
        self._private, self._steps, self._epochs, self._rate = private, steps, epochs, rate
        self._epoch = 0
        self._begun = 0
        self._first: int | None = None
        self._is_required = False

    def get_state(self) -> dict[str, Any]:
        return self._private.budget.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._private.budget = self._private.budget.restored(state)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._first = epoch, None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._is_required:  # what a backup has restored was not known when `fit` began
            self._is_required = True
            self._private.require(self._steps * (self._epochs - self._epoch) - batch, self._rate)
        if self._first is None:
            self._first, self._begun = batch, self._private.budget.steps
            self._private.begin_at(self._begun)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._private.take_to(self._begun + batch + 1 - (self._first or 0), self._rate)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["epsilon"] = self._private.budget.spent_epsilon


def _required(model: keras.Model, x: Any) -> PoissonBatches:
    """Return the data, if with them and the model a step is private and computes what it says; else raise."""
    if not model.compiled or model.optimizer is None:
        raise ConfigError(f"model {model.name!r} is not compiled. Call model.compile() first.", name="model")
    if not isinstance(x, PoissonBatches):
        raise UnsupportedError(
            f"fit of a private model is given {type(x).__name__}, and epsilon holds for Poisson samples alone: each "
            "example in each batch by a probability of its own. Shuffled batches leak more than is accounted for. Pass "
            "tfdist.data.poisson((x, y), global_batch_size=...).",
            name="x",
            received=type(x).__name__,
        )
    if type(model).train_step is not keras.Model.train_step:
        raise UnsupportedError(
            f"{type(model).__name__} has a train_step of its own, of which no gradient of a single example is known. "
            "Let Keras' own step train it; compute_loss may be your own.",
            name="train_step",
        )
    for layer in keras_trainer.layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise UnsupportedError(
                f"the layer {layer.name!r} normalizes by statistics of the batch, so no gradient belongs to one "
                "example alone. Use GroupNormalization or LayerNormalization, or freeze it: layer.trainable = False.",
                name=layer.name,
            )
    _require_optimizer(model.optimizer)
    _require_strategy(keras_trainer.created_under(model))
    if model.jit_compile:
        if keras_trainer.compile_arguments(model).get("jit_compile") != "auto":
            raise UnsupportedError(
                "jit_compile is True, and the number of examples of a Poisson sample is known when the step runs, too "
                "late for XLA. Pass jit_compile=False to model.compile().",
                name="jit_compile",
                received=True,
            )
        model.jit_compile = False
    return x


def _require_optimizer(optimizer: Any) -> None:
    for one in keras_optimizer.chain(optimizer):
        if isinstance(one, ReducesItself) or keras_optimizer.is_horovods(one):
            raise UnsupportedError(
                f"the optimizer {one.name!r} is a {type(one).__name__}, which may compress or combine what replicas "
                "send before the noise is in it. Pass the plain Keras optimizer to compile().",
                name=one.name,
            )


def _require_strategy(strategy: Any) -> None:
    if strategy is None or (not isinstance(strategy, KerasTraining) and strategy.num_replicas_in_sync == 1):
        return
    own = services(strategy)
    adds_up = isinstance(strategy, (MirroredStrategy, MultiWorkerMirroredStrategy, RingStrategy))
    # workers that meet seldom would train without noise in between
    if not adds_up or own.weights is not None or own.sharding is not None or strategy.apart is not None:
        raise UnsupportedError(
            "a private model trains on one device, or under tfdist's MirroredStrategy, MultiWorkerMirroredStrategy "
            "and RingStrategy, with whole weights and slots, and with sums in every step; this one was created under "
            f"{type(strategy).__name__}.",
            name=type(strategy).__name__,
        )


def _scope(model: keras.Model) -> Any:
    strategy = keras_trainer.created_under(model)
    return contextlib.nullcontext() if strategy is None else strategy.scope()
