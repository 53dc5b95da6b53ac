#!/usr/bin/env bash
# Finding: TensorFlow decodes a JPEG file to other pixels than Pillow unless it is told which transform to use.
#
# Versions: TensorFlow 2.21.0, Pillow 12.0.0, Python 3.11, x86-64 Linux.
# Behaviour: tf.io.decode_jpeg uses the fast integer transform by default, and Pillow the accurate one. Pixels differ by
# up to 6 of 255 here. A model that was trained with one and serves with the other sees other inputs, and a test of equal
# inputs fails. With dct_method="INTEGER_ACCURATE" the two are equal, bit by bit. tf.io.decode_image has no such argument.
# Output seen: default: differs by up to 6; INTEGER_ACCURATE: 0; decode_image: 6
# The script fails if the default equals Pillow, or the accurate transform does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 pillow==12.0.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import io

import numpy as np
import tensorflow as tf
from PIL import Image

noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
file = io.BytesIO()
Image.fromarray(noise).resize((256, 256), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
expected = np.asarray(Image.open(file)).astype(int)


def difference(decoded):
    """Return the largest difference to what Pillow decodes."""
    return int(abs(decoded.numpy().astype(int) - expected).max())


data = file.getvalue()
default = difference(tf.io.decode_jpeg(data))
accurate = difference(tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE"))
image = difference(tf.io.decode_image(data))
print(f"default: differs by up to {default}; INTEGER_ACCURATE: {accurate}; decode_image: {image}")
assert default > 0 and image > 0 and accurate == 0, "the behaviour has changed"
PROGRAM
