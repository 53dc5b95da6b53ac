#!/usr/bin/env bash
# Finding: second derivatives of `tf.linalg.det` are wrong where singular values are equal, as at the identity matrix.
#
# Versions: TensorFlow 2.22.0rc0, Python 3.11. TensorFlow 2.21.0 gives the right ones.
# Behaviour: the gradients of `det`, `slogdet` and `logdet` now come from a singular value decomposition, so that
# singular matrices have one. They are right. Their own gradients go through the decomposition, whose gradient divides
# by differences of squared singular values, and has 0 where it would divide by 0. So second derivatives lose those
# terms without a warning, at the identity, every rotation and every multiple of them. Near them they lose digits: in
# float32, at a distance of 1e-6, hardly any is left. Energies of elastic bodies start at the identity, and their
# stiffness is a second derivative of a function of the determinant. Write a determinant of two or three rows out.
# Output seen: of ad - bc at the identity, d2/db dc is 0.0 by det, 0.0 by slogdet, -1.0 written out; at a rotation, the
# largest error of the second derivatives by det is 0.91; in float32 near the identity 0.344
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --pre tensorflow-cpu==2.22.0rc0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import numpy as np
import tensorflow as tf

EXACT = np.array([[0, 0, 0, 1], [0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0]])  # of ad - bc, everywhere


def second(matrix, det=tf.linalg.det):
    """Return the second derivatives of the determinant of a 2 x 2 matrix (a, b; c, d)."""
    matrix = tf.constant(matrix)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(matrix)
        with tf.GradientTape() as inner:
            inner.watch(matrix)
            found = det(matrix)
        first = inner.gradient(found, matrix)
        entries = [first[row, column] for row in range(2) for column in range(2)]
    return np.array([outer.gradient(entry, matrix).numpy().ravel() for entry in entries])


def by_logarithm(matrix):
    sign, logarithm = tf.linalg.slogdet(matrix)
    return sign * tf.exp(logarithm)


def written_out(matrix):
    return matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]


def error(matrix):
    return np.abs(second(matrix) - EXACT).max()


identity = np.eye(2)
rotation = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
near = (identity + 1e-6 * np.array([[0.1, -0.1], [0.6, 0.1]])).astype("float32")
found, logarithm, right = (second(identity, det)[1, 2] for det in (tf.linalg.det, by_logarithm, written_out))
print(f"of ad - bc at the identity, d2/db dc is {found} by det, {logarithm:.1f} by slogdet,", end=" ")
print(f"{right} written out;", end=" ")
print(f"at a rotation, the largest error of the second derivatives by det is {error(rotation):.2f};", end=" ")
print(f"in float32 near the identity {error(near):.3f}")
assert np.array_equal(second(identity), np.where(EXACT < 0, 0, EXACT)), "the behaviour has changed"
assert error(rotation) > 0.5 and error(near) > 1e-3, "the behaviour has changed"
assert error(np.array([[1.0, 2.0], [3.0, 4.0]])) < 1e-12, "the behaviour has changed"
assert logarithm == 0 and np.array_equal(second(identity, written_out), EXACT), "the behaviour has changed"
PROGRAM
