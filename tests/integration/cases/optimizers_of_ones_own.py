"""Optimizers as users write them, which look at more than an element of a variable."""

from typing import Any

import keras


class Unknown(keras.optimizers.Optimizer):
    """Looks at whole variables and has slots of another shape."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.rows = [self.add_variable(shape=(*one.shape, 1)[:1], name=f"rows{i}") for i, one in enumerate(variables)]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        gradient = keras.ops.convert_to_tensor(gradient)
        size = keras.ops.sqrt(keras.ops.sum(keras.ops.square(gradient))) + 1e-3
        rows = self.rows[self._get_variable_index(variable)]
        first = keras.ops.reshape(gradient, (rows.shape[0], -1))
        self.assign_add(rows, keras.ops.sum(keras.ops.abs(first), axis=-1))
        self.assign_sub(variable, gradient * keras.ops.cast(learning_rate, gradient.dtype) / size)


class Counts(Unknown):
    """Keeps a number as well."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.count = self.add_variable(shape=(), name="count")


class CountingSteps(keras.optimizers.SGD):
    """Keeps a number, and nothing else that SGD does not keep."""

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self.count = self.add_variable(shape=(), name="count")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(self.count, 1.0)
        super().update_step(gradient, variable, learning_rate)


class Norms(keras.optimizers.SGD):
    """Keeps the norms of all gradients in one variable, and divides by their sum."""

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self.norms = self.add_variable(shape=(len(variables),), name="norms")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        place = [[self._get_variable_index(variable)]]
        self.norms.assign(keras.ops.scatter_update(self.norms, place, [keras.ops.norm(gradient)]))
        super().update_step(gradient / (1.0 + keras.ops.sum(self.norms)), variable, learning_rate)


class Noisy(keras.optimizers.SGD):
    """Draws noise for all variables from one generator."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.generator = keras.random.SeedGenerator(7)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = keras.random.normal(gradient.shape, seed=self.generator)
        super().update_step(gradient + 0.1 * noise, variable, learning_rate)


class Unseeded(keras.optimizers.SGD):
    """Draws noise from Keras' generator without a seed."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient + 0.1 * keras.random.normal(gradient.shape), variable, learning_rate)


class OwnApply(keras.optimizers.SGD):
    """Has the gradients of all variables at once."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([grad * 2 for grad in grads], trainable_variables)


class OwnPairs(keras.optimizers.SGD):
    """Has all gradients and variables at once."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(grad * 2, variable) for grad, variable in grads_and_vars])


class OwnScale(keras.optimizers.LossScaleOptimizer):
    """Has the scaled gradients of all variables at once."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([grad * 2 for grad in grads], trainable_variables)


class OwnAverages(keras.optimizers.SGD):
    """Assigns moving averages to weights, in a way of its own."""

    def finalize_variable_values(self, var_list: Any) -> None:
        for variable, average in zip(var_list, self._model_variables_moving_average, strict=True):
            variable.assign(average)
