"""Transfers between parts of a model: activations forward, gradients back; nothing travels within a process."""

import tensorflow as tf

from tfdist.collectives.collective import Collective
from tfdist.parallel.pipeline.flow import Edge


class Links:
    """A stage's end of the transfers of a step; `gradients_sent` has the operations that send gradients."""

    def __init__(self, collective: Collective, name: str) -> None:
        self.gradients_sent: list[tf.Operation] = []
        self._started: list[tf.Operation] = []
        self._collective = collective
        self._name = name
        self._kept: dict[str, tf.Tensor] = {}

    def send_activation(self, tensor: tf.Tensor, edge: Edge, microbatch: int) -> None:
        """Send what one part has made to the part that takes it."""
        self._send(tensor, self._key("activation", edge, microbatch), edge.target)

    def take_activation(self, edge: Edge, microbatch: int, spec: tf.TensorSpec) -> tf.Tensor:
        """Return what another part has made."""
        return self._take(spec, self._key("activation", edge, microbatch), edge.source)

    def send_gradient(self, gradient: tf.Tensor, edge: Edge, microbatch: int) -> None:
        """Send the gradient of what a part has taken back to the part that made it."""
        sent = self._send(gradient, self._key("gradient", edge, microbatch), edge.source)
        if sent is not None:
            self.gradients_sent.append(sent)

    def take_gradient(self, edge: Edge, microbatch: int, spec: tf.TensorSpec) -> tf.Tensor:
        """Return the gradient of what this part has made for another."""
        return self._take(spec, self._key("gradient", edge, microbatch), edge.target)

    def started(self) -> list[tf.Operation]:
        """Return operations behind which what was sent since the last call is under way, as far as that is known."""
        started, self._started = self._started, []
        return started

    def _key(self, what: str, edge: Edge, microbatch: int) -> str:
        return f"{self._name} {what} {edge.number} {edge.source} {edge.target} of {microbatch}"

    def _send(self, tensor: tf.Tensor, key: str, part: int) -> tf.Operation | None:
        """Return the operation that sends; None where the tensor stays here."""
        stage = part % self._collective.size
        if stage == self._collective.rank:
            self._kept[key] = tensor
            return None
        sent = self._collective.send(tensor, key=key, to=stage)
        start = self._collective.start_of(sent)
        self._started += [] if start is None else [start]
        return sent

    def _take(self, spec: tf.TensorSpec, key: str, part: int) -> tf.Tensor:
        stage = part % self._collective.size
        if stage == self._collective.rank:
            return self._kept.pop(key)
        return tf.ensure_shape(self._collective.receive(spec, key=key, source=stage), spec.shape)
