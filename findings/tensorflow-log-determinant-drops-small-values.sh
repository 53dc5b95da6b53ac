#!/usr/bin/env bash
# Finding: the gradient of a log-determinant leaves out small singular values, which are the ones that matter.
#
# Versions: TensorFlow 2.22.0rc0, Python 3.11. TensorFlow 2.21.0 gives the right gradients.
# Behaviour: the gradient of `logdet` and `slogdet` is the inverse, a sum of 1 / s over the singular values s. It is now
# computed as a pseudoinverse, which has 0 for each s below rows * epsilon * the largest. In float32, that is 1 / 42000
# of the largest for 200 rows, and 1 / 4200 for 2000. Matrices of kernels and covariances have such values, and their
# 1 / s are nearly all of the sum. The log-determinant itself has them, so the loss is right and its gradient is not.
# An estimate of noise stops where the values begin to be dropped. Use float64, or twice the sum of the logarithms of
# `tf.linalg.diag_part(tf.linalg.cholesky(matrix))`, by which TensorFlow 2.21.0 computed `logdet`.
# Output seen: of 200 points with noise 0.001: logdet -1261.6, its gradient 2080 by logdet, 2080 by slogdet, 182998 by
# cholesky, 183005 exactly
# fitted noise of data with noise 0.0001: 0.00114 by logdet, 0.00009 by cholesky
# The script fails if that changes; the last digits may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --pre tensorflow-cpu==2.22.0rc0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import numpy as np
import tensorflow as tf

POINTS = np.linspace(0, 10, 200)
KERNEL = np.exp(-0.5 * (POINTS[:, None] - POINTS[None]) ** 2)


def by_cholesky(matrix):
    return 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(matrix))))


def covariance(noise):
    return tf.constant(KERNEL, noise.dtype) + noise * tf.eye(len(POINTS), dtype=noise.dtype)


def gradient(logdet, kind="float32"):
    """Return the log-determinant of a covariance with noise 0.001, and its derivative for the noise."""
    noise = tf.constant(0.001, kind)
    with tf.GradientTape() as tape:
        tape.watch(noise)
        value = logdet(covariance(noise))
    return float(value), float(tape.gradient(value, noise))


def fitted(logdet, labels):
    """Return the noise at which descent ends, of the likelihood of a Gaussian process."""
    logarithm = tf.Variable(np.log(0.01), dtype="float32")
    labels = tf.constant(labels[:, None], "float32")
    for step in range(150):
        with tf.GradientTape() as tape:
            matrix = covariance(tf.exp(logarithm))
            explained = tf.reduce_sum(labels * tf.linalg.cholesky_solve(tf.linalg.cholesky(matrix), labels))
            loss = explained + logdet(matrix)
        logarithm.assign_sub(tf.sign(tape.gradient(loss, logarithm)) * 0.1 * 0.985**step)
    return float(tf.exp(logarithm))


def by_slogdet(matrix):
    return tf.linalg.slogdet(matrix)[1]


ways = {"logdet": tf.linalg.logdet, "slogdet": by_slogdet, "cholesky": by_cholesky}
exact = (1 / (np.linalg.eigvalsh(KERNEL) + 0.001)).sum()
found = {name: gradient(way) for name, way in ways.items()}
print(f"of 200 points with noise 0.001: logdet {found['logdet'][0]:.1f}, its gradient ", end="")
print(", ".join(f"{slope:.0f} by {name}" for name, (_, slope) in found.items()), end="")
print(f", {exact:.0f} exactly")
draw = np.random.default_rng(0).multivariate_normal(np.zeros(200), KERNEL + 0.0001 * np.eye(200))
noises = {name: fitted(ways[name], draw) for name in ("logdet", "cholesky")}
print("fitted noise of data with noise 0.0001: ", end="")
print(", ".join(f"{noise:.5f} by {name}" for name, noise in noises.items()))
right = np.log(np.linalg.eigvalsh(KERNEL) + 0.001).sum()
assert all(abs(value - right) < 0.1 for value, _ in found.values()), "the behaviour has changed"
slopes = [slope / exact for _, slope in found.values()]
assert max(slopes[:2]) < 0.1 and abs(slopes[2] - 1) < 0.01, "the behaviour has changed"
assert abs(gradient(tf.linalg.logdet, "float64")[1] / exact - 1) < 1e-6, "the behaviour has changed"
assert noises["logdet"] > 5 * noises["cholesky"], "the behaviour has changed"
PROGRAM
