"""One-way compression: a tensor is encoded in one place and decoded in another, as by workers and parameter servers."""

import tensorflow as tf

from tfdist.compression import packing
from tfdist.compression.codec import Codec, RowCodec, row_length
from tfdist.compression.codecs.casting import Rounded, Whole
from tfdist.compression.kernels import for_other_processes


def goes_one_way(codec: Codec) -> bool:
    """Return whether a codec needs neither a memory nor an answer: its words are enough.

    Example:
        >>> from tfdist.compression import QSGD, PowerSGD
        >>> goes_one_way(QSGD()), goes_one_way(PowerSGD())
        (True, False)
    """
    if isinstance(codec, Rounded):
        return isinstance(codec.codec, Whole)
    return isinstance(codec, (RowCodec, Whole)) and codec.accuracy != "biased"


def sent(codec: Codec, tensor: tf.Tensor) -> tf.Tensor:
    """Return the encoded tensor.

    Random numbers follow from the tensor itself, so a tensor that is computed again is encoded to the same words.
    """
    if isinstance(codec, Rounded):
        return tf.cast(tensor, codec.wire_dtype)
    if not isinstance(codec, RowCodec):
        return tensor
    flat = tf.reshape(tf.cast(tensor, tf.float32), [1, -1])
    elements = int(tensor.shape.num_elements())
    row = tf.pad(flat, [[0, 0], [0, row_length(elements, 1, codec.row_multiple) - elements]])
    seed = tf.stack([tf.reduce_sum(packing.as_words(flat)), elements])
    # codecs may turn NaN and infinity into finite numbers
    check = tf.where(tf.reduce_all(tf.math.is_finite(flat)), 0.0, float("nan"))
    with for_other_processes():
        words = codec.encode(row, seed)
    return tf.concat([words, packing.as_words(tf.reshape(check, [1, 1]))], axis=1)


def wire_shape(codec: RowCodec, elements: int) -> tuple[int, int]:
    """Return the shape of the int32 tensor that `sent` returns for this number of elements.

    Example:
        >>> from tfdist.compression import TopK
        >>> wire_shape(TopK(density=0.01), 1000)
        (1, 21)
    """
    return 1, codec.row_words(row_length(elements, 1, codec.row_multiple)) + 1


def received(codec: Codec, wire: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Return the decoded tensor.

    Example:
        >>> from tfdist.compression import Float16
        >>> third = tf.constant([1 / 3])
        >>> received(Float16(), sent(Float16(), third), tf.TensorSpec([1], tf.float32)).numpy().tolist()
        [0.333251953125]
    """
    if not isinstance(codec, RowCodec):
        return tf.cast(wire, spec.dtype)
    elements = int(spec.shape.num_elements())
    count = row_length(elements, 1, codec.row_multiple)
    words, check = wire[:, :-1], packing.as_numbers(wire[:, -1])
    with for_other_processes():
        numbers = codec.decode(words, count)[0, :elements] + check
    return tf.cast(tf.reshape(numbers, spec.shape), spec.dtype)
