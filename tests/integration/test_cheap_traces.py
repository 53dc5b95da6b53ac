"""Work that forks of the tests leave out when they trace; the traces stay the same."""

import sys
from pathlib import Path

import pytest

from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.testing.pool import WorkerPool, worker_environments

CASES = Path(__file__).parent / "cases"

FAILING = """
import keras, traceback
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
for called in (tf.add, keras.layers.Dense(1)):
    try:
        called("a", 1) if called is tf.add else called(tf.ones(()))
    except Exception as error:
        print("through", [one.name for one in traceback.extract_tb(error.__traceback__)])
"""

ORDERED = """
import tensorflow as tf

asked, get_attr = [], tf.Operation.get_attr
tf.Operation.get_attr = lambda self, name: (asked.append(name), get_attr(self, name))[1]
variable = tf.Variable(1.0)

@tf.function
def changed(x):
    before = variable.read_value()
    variable.assign(2.0 * x)
    for _ in range(20):
        x = x * 1.0
    between = variable.read_value()
    variable.assign_add(x)
    return before, between, variable.read_value()

print("values", [float(value) for value in changed(tf.constant(3.0))])
print("asked", asked.count("_read_only_resource_inputs"))
"""

SEARCHED = """
import ctypes
import keras, numpy as np
from tensorflow.python.util import _pywrap_util_port

this = ctypes.CDLL(None)
asked, searched = (getattr(this, f"times_kernels_were_{what}") for what in ("asked_for", "searched"))
before, listed = (asked(), searched()), this.times_operations_were_listed()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.zeros((16, 4)), np.zeros((16, 1)), batch_size=8, verbose=0)
uses = _pywrap_util_port.IsMklEnabled()
print("asks" if (asked() > before[0]) == uses else "does not ask", "and searches", searched() - before[1])
print("lists", this.times_operations_were_listed() > listed)
"""

SLICED = """
import keras, numpy as np
from tests.integration import without_slices

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.0), "mse")
kernel, bias = model.get_weights()
for rows in (np.eye(3), 2 * np.eye(3)[::-1]):
    history = model.fit(rows, np.zeros(3), batch_size=2, verbose=0).history
    assert np.allclose(history["loss"], np.mean((rows @ kernel + bias) ** 2), atol=1e-5)
print("keeps", len(without_slices._kept))
model.fit(np.eye(3)[:2], np.zeros(2), batch_size=2, verbose=0)
print("and keeps", len(without_slices._kept))
orders = []
for seed in (1, 2):
    keras.utils.set_random_seed(seed)
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: orders.append(logs["loss"]))
    model.fit(np.diag([1.0, 20.0, 300.0]), np.ones(3), batch_size=1, verbose=0, callbacks=[seen], epochs=3)
print("orders differ", orders[:9] != orders[9:])
"""

GATHERED = """
import keras, numpy as np, tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.data.ops import structured_function
from tests.integration import without_gathers

traced, make = [], structured_function.StructuredFunctionWrapper

def traced_function(*given, **more):
    traced.append(given[0])
    return make(*given, **more)

structured_function.StructuredFunctionWrapper = traced_function
for rows, size in ((12, 4), (13, 4), (3, 4)):
    texts = tf.constant([f"row {row}" for row in range(rows)])
    x = {"numbers": np.random.normal(size=(rows, 2, 2)), "in a list": [texts]}
    adapter = ArrayDataAdapter(x, np.arange(rows), np.ones(rows, "float16"), batch_size=size)
    ours, before = adapter.get_tf_dataset(), len(traced)
    keras_own = without_gathers._of_keras(adapter)
    assert ours.element_spec == keras_own.element_spec and ours.options() == keras_own.options()
    for one, other in zip(ours, keras_own, strict=True):
        assert all(map(np.array_equal, tf.nest.flatten(one), tf.nest.flatten(other)))
    print("functions", before, "and", len(traced))
    traced.clear()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((6, 2)), np.zeros(6), batch_size=4, shuffle=False, verbose=0)
print("in fit", len(traced))
model.fit(np.zeros((6, 2)), np.zeros(6), batch_size=4, verbose=0)
print("in order or not", len(traced))
"""

HELD = """
import numpy as np, tensorflow as tf
from tensorflow.python.framework import ops, tensor_util
from tests.integration import without_constants

made, make = [], tensor_util.make_tensor_proto
tensor_util.make_tensor_proto = lambda *given, **more: (made.append(given[0]), make(*given, **more))[1]

def constants():
    plain = [1, True, 1.0, 0.0, -0.0, [1, 2], [1, True], np.int16([1, 2]), np.int16([[1, 2]]), float("nan"), "text"]
    typed = [tf.constant(1, tf.int64), tf.constant(1.0, tf.float64), tf.constant(7, shape=[2]), tf.zeros([1, 2])]
    shapes = (1, 2), tf.TensorShape([2]), [tf.compat.v1.Dimension(2)]
    return [*map(tf.constant, plain), *typed, *(tf.constant(7, shape=shape) for shape in shapes)]

def of_a_graph():
    made.clear()
    return [(one.dtype, repr(one.numpy()), one.shape) for one in tf.function(constants)()]

ours, ops._create_graph_constant = ops._create_graph_constant, without_constants._made
expected = of_a_graph()
ops._create_graph_constant = ours
assert of_a_graph() == expected
assert of_a_graph() == expected
print("again", made)
"""

CUT = """
import keras, numpy as np
import tfdist
from tests.integration import without_cuts

tfdist.strategies.use_logical_cpus(2)
two = tfdist.strategies.MirroredStrategy()

def trained(strategy, rows, weights):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if strategy is two:
        two.shares = weights
    model.fit(rows, rows[:, :1], batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()[0]

one, rows = tfdist.strategies.MirroredStrategy(["CPU:0"]), np.random.default_rng(0).normal(size=(12, 3))
for values, weights in ((rows, (1, 1)), (rows[::-1], (1, 1)), (rows, (3, 1)), (2 * rows, (3, 1))):
    assert np.allclose(trained(two, values, weights), trained(one, values, weights), atol=1e-6)
print("cut", len(without_cuts._kept))  # by one replica, by two with equal shares, and by two with others
"""

REWRITTEN = """
import tensorflow as tf
from tests.integration import without_rewrites
from tensorflow.python.data.experimental.ops.testing import assert_next

def elements():
    data = tf.data.Dataset.range(4).apply(assert_next(["Map", "Batch"])).map(lambda x: x + 1).batch(2)
    return [one.numpy().tolist() for one in data]

print("as written", elements())
without_rewrites._dataset_ops.make_iterator = without_rewrites._make
try:
    elements()
except tf.errors.InvalidArgumentError:
    print("else fused")
"""

LISTED = """
from tests.integration import without_protocols
import keras, tensorflow as tf

calls = without_protocols._once.cache_info
before = calls()
assert tf.is_tensor(tf.constant(1.0)) and not tf.is_tensor(object())
keras.ops.add(tf.constant(1.0), 2.0)
after = calls()
print("asked", after.hits + after.misses > before.hits + before.misses, "listed", after.misses <= after.currsize)
"""

NAMED = """
import tensorflow as tf
from tests.integration import without_names

seen, made = [], without_names._made
without_names._made = lambda *given, **more: (seen.append(more.get("debug_name")), made(*given, **more))[1]
print(tf.Variable(1.0, name="weight").name, "made with", seen)
"""


def run(forking: Forks, folder: Path, text: str) -> str:
    script = folder / "script.py"
    script.write_text(text)
    assert forking.run(str(script)) == 0, forking.output
    return forking.output


def test_operations_do_not_remember_where_they_were_made(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, FAILING)
    assert "made at {None}" in said, "TensorFlow takes stacks in another place: all tests cost more"
    assert "Tensor had NaN values" in said
    of_tensorflow, of_keras = (line for line in said.splitlines() if line.startswith("through"))
    assert "op_dispatch_handler" in of_tensorflow, "TensorFlow filters tracebacks elsewhere: all tests cost more"
    assert "__call__" in of_keras, "Keras filters tracebacks elsewhere: all tests cost more"


def test_a_pool_traces_a_step_of_one_device_once(forking: Forks) -> None:
    def environments() -> list[dict[str, str]]:
        made = worker_environments(forking.environment, strategy=None, ports=[41000], replicas_per_worker=1)
        return [one | {"PYTHONPATH": python_path(CASES)} for one in made]

    with WorkerPool(environments, start=forking.worker) as pool:
        (reply,) = pool.call("traced_cases:of_one_device", {}, timeout_seconds=800)
    assert reply.status == "returned", reply.detail
    assert reply.value["traces"] == 1, "Keras makes variables in a step again: TensorFlow traces it twice"
    assert reply.value["updates"] == 3


def test_operations_without_resources_are_not_asked_for_them(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, ORDERED)
    assert "values [1.0, 6.0, 9.0]" in said  # in the order of the program
    assert 0 < int(said.split("asked ")[1].split()[0]) < 20, "TensorFlow asks in another place: all tests cost more"


def test_kernels_are_not_searched_for_those_of_onednn(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, SEARCHED)
    assert "asks and searches 0\n" in said, "TensorFlow asks in another place: all tests cost more"
    assert "lists True\n" in said, "TensorFlow lists XLA's operations in another place: all tests cost more"


def test_how_shuffled_arrays_are_taken_is_traced_once_for_arrays_of_a_kind(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, SLICED)
    assert "keeps 2\n" in said, "Keras traces other functions: all tests cost more"
    assert "and keeps 4\n" in said  # for another number of rows
    assert "orders differ True" in said


def test_arrays_in_order_are_cut_without_functions_into_the_batches_of_keras(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, GATHERED)
    assert said.count("functions 0 and 3\n") == 3
    assert "in fit 0\n" in said, "Keras makes datasets of arrays elsewhere: all tests cost more"
    assert "in order or not 3\n" in said


def test_small_constants_are_written_once(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, HELD)
    assert "again [[1, True], nan, 'text', 7, 7]\n" in said, "TensorFlow makes constants elsewhere: all tests cost more"


def test_how_batches_are_cut_is_traced_once_for_the_same_parts_of_the_same_types(
    forking: Forks, tmp_path: Path
) -> None:
    assert "cut 3\n" in run(forking, tmp_path, CUT), "tfdist cuts in another place: all tests cost more"


def test_pipelines_run_as_they_are_written(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, REWRITTEN)
    assert "as written [[1, 2], [3, 4]]" in said
    assert "else fused" in said, "TensorFlow rewrites in another place: all tests cost more"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 and later list them once by themselves")
def test_the_attributes_of_protocols_are_listed_once(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, LISTED)
    assert "asked True listed True" in said, "protocols are looked at elsewhere: all tests cost more"


def test_handles_of_variables_have_no_names_for_messages(forking: Forks, tmp_path: Path) -> None:
    said = run(forking, tmp_path, NAMED)
    assert "weight:0 made with [None]" in said, "TensorFlow makes variables elsewhere: all tests cost more"
