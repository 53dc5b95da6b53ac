"""What forks of the tests do not remember, and that the errors of operations are the same nevertheless."""

from pathlib import Path

from tests.integration.forks import Forks

SCRIPT = """
import tensorflow as tf

@tf.function
def checked(x):
    return tf.debugging.check_numerics(x + 1.0, "this sum")

graph = checked.get_concrete_function(tf.TensorSpec([])).graph
print("made at", {operation.traceback for operation in graph.get_operations()})
try:
    checked(tf.constant(float("nan")))
except tf.errors.InvalidArgumentError as error:
    print(error.message)
"""


def test_operations_do_not_remember_where_they_were_made(forking: Forks, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert forking.run(str(script)) == 0, forking.output
    assert "made at {None}" in forking.output, "TensorFlow takes stacks in another place: all tests cost more"
    assert "this sum : Tensor had NaN values" in forking.output
