"""Every private name and frame of TensorFlow, Keras and Horovod that `tfdist/compat` stands on: an assertion for each.

It runs alone, in one process, beside any versions: what fails says what has moved, and which file needs it. Names that
a file imports are read off its source. Those of objects are in `NAMES` (`tests/names_of_objects.py`), which the last
tests compare with the source.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.callbacks.callback_list import CallbackList
from packaging.version import Version
from tensorflow.python.distribute import merge_call_interim
from tensorflow.python.eager import context, executor

from tests import private_names
from tests.names_of_objects import ATTENTION, NAMES, OURS
from tests.private_objects import (
    X,
    Y,
    attention,
    hung,
    model,
    strategy,
)
from tfdist.compat import planted, version_pairs
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_frames, keras_trainer, layer_methods
from tfdist.compat.tensorflow import tensor_arrays, tf_data

INSTALLED = version_pairs.judge(tf.__version__, keras.__version__).text


def moved(file: str, what: str) -> str:
    return f"{what} has moved, and tfdist/compat/{file} needs it ({INSTALLED})"


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


def is_in(owner: Any, name: str) -> bool:
    """Whether an object has an attribute, or a class has it or uses it in a method: its instances have it."""
    if hasattr(owner, name):
        return True
    if not isinstance(owner, type):
        return name in owner if isinstance(owner, dict) or hasattr(owner, "keys") else False
    for base in owner.__mro__:
        for method in vars(base).values():
            function = getattr(method, "fget", method)
            function = getattr(function, "__func__", function)
            while hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            if hasattr(function, "__code__") and any(name in code.co_names for code in codes(function.__code__)):
                return True
    return False


def is_there(module: str) -> bool:
    """Whether a package is installed; Horovod need not be."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


IMPORTS = [
    (private_names.file(path), module, name)
    for path in private_names.files()
    for module, name in private_names.imports(path)
    if is_there(module)
]
ATTRIBUTES = [
    (private_names.file(path), module, *entry)
    for path in private_names.files()
    for module, *entry in private_names.attributes(path)
    if is_there(module)
]
OF_OBJECTS = [
    (file, name, owner) for file, names in NAMES.items() for name, owner in names.items() if owner is not OURS
]


def imported(module: str, name: str) -> Any:
    """Return the object that `from module import name` binds."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize(("file", "module", "name"), IMPORTS)
def test_what_is_imported_is_there(file: str, module: str, name: str) -> None:
    try:
        imported(module, name)
    except (ImportError, AttributeError) as error:
        pytest.fail(moved(file, f"`from {module} import {name}` ({error})"))


@pytest.mark.parametrize(("file", "module", "name", "attribute"), ATTRIBUTES)
def test_what_modules_offer_is_there(file: str, module: str, name: str, attribute: str) -> None:
    owner = imported(module, name.removesuffix(".context()"))
    owner = owner.context() if name.endswith(".context()") else owner
    assert is_in(owner, attribute), moved(file, f"{module}.{name}.{attribute}")


@pytest.mark.parametrize(("file", "name", "owner"), OF_OBJECTS, ids=[f"{f}-{n}" for f, n, _ in OF_OBJECTS])
def test_what_objects_have_is_there(file: str, name: str, owner: Callable[[], Any]) -> None:
    found = owner()
    assert is_in(found, name), moved(
        file, f"the attribute {name} of {getattr(found, '__name__', type(found).__name__)}"
    )


LOCALS = [
    ("keras/epochs.py", "fit", sorted(keras_epochs._FIT_NAMES)),
    *(("keras/model.py", method, ["self", "callbacks"]) for method in ("fit", "evaluate", "predict")),
    *(("keras/model.py", method, ["self"]) for method in ("compile", "_maybe_symbolic_build")),
    ("keras/model.py", "train_step", ["self"]),
]


@pytest.mark.parametrize(("file", "method", "names"), LOCALS)
def test_frames_of_the_trainer_have_their_variables(file: str, method: str, names: list[str]) -> None:
    code = keras_frames.code_of(getattr(keras.Model, method))
    missing = set(names) - set(code.co_varnames + code.co_cellvars)
    assert not missing, moved(file, f"the variable {', '.join(sorted(missing))} of keras.Model.{method}")


@pytest.mark.parametrize(
    ("file", "function", "names"),
    [
        ("keras/model.py", TFEpochIterator.__init__, {"self"}),
        ("keras/epochs.py", CallbackList.__init__, {"self"}),
        ("keras/keras_variables.py", keras.Variable._initialize_with_initializer, {"self", "initializer"}),
    ],
)
def test_frames_of_others_have_their_variables(file: str, function: Any, names: set[str]) -> None:
    missing = names - set(function.__code__.co_varnames)
    assert not missing, moved(file, f"the variable {', '.join(sorted(missing))} of {function.__qualname__}")


def test_an_optimizer_clips_then_decays_then_updates_then_averages() -> None:
    one, called = keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1), []
    steps = ["_clip_gradients", "_apply_weight_decay", "_distributed_tf_update_step"]
    steps += ["_update_model_variables_moving_average", "_overwrite_model_variables_with_average_value"]
    for name in steps:
        vars(one)[name] = lambda *given, name=name: (called.append(name), *given)[1]
    one.apply([tf.ones([2])], [keras.Variable([1.0, 2.0])])
    assert called == steps, moved("keras/sharded_optimizer.py", "the order of an update")


def test_an_optimizer_asks_for_merge_calls_from_the_module_that_is_known() -> None:
    functions = [function for function in vars(merge_call_interim).values() if hasattr(function, "__code__")]
    asking = [name for function in functions for code in codes(function.__code__) for name in code.co_names]
    assert "_use_merge_call" in asking or "strategy_supports_no_merge_call" in asking, moved(
        "tensorflow/strategies.py", "what asks for _use_merge_call in merge_call_interim"
    )


def test_the_trainer_calls_what_is_taken_the_place_of() -> None:
    lost = keras_trainer.lost_hooks()
    assert not lost, moved("keras/model.py", f"what {', '.join(lost)} calls")


class Looks(keras.callbacks.Callback):
    """Notes what is found of the `fit` that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Any] = {}

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        fit = keras_epochs.running_fit(model)
        self.found["when told"] = fit is not None and fit.callbacks is not None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        fit = keras_epochs.running_fit(self.model)
        assert fit is not None, moved("keras/epochs.py", "the frame of fit, seen from a callback")
        self.found |= {"epochs": fit.epochs, "steps": fit.steps, "batch size": fit.batch_size}
        self.found["callbacks"] = self in fit.callbacks.callbacks


def test_an_element_is_taken_without_an_executor_that_other_threads_may_find_deleted(monkeypatch: Any) -> None:
    made: list[Any] = []
    monkeypatch.setattr(executor, "new_executor", lambda *given: made.append(given))
    numbers = tf_data.iterator(tf.data.Dataset.range(3), lambda text: None)
    assert [int(numbers.get_next()), *map(int, numbers)] == [0, 1, 2]
    assert not made, moved("tensorflow/data.py", "IteratorGetNext, which takes an element by itself")


def test_rows_are_taken_apart_without_a_function() -> None:
    batch = tf.data.Dataset.from_tensors({"x": tf.reshape(tf.range(6), [3, 2])})
    rows = tf_data.unbatched(batch)
    assert [row["x"].numpy().tolist() for row in rows] == [[0, 1], [2, 3], [4, 5]]
    assert rows._inputs() == [batch], moved("tensorflow/tf_data.py", "_UnbatchDataset, which makes nothing dense")


def test_variables_are_held_without_a_copy_and_without_a_function() -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([3]), tf.Variable(tf.cast([0.5], tf.bfloat16))]
    functions = context.context().list_function_names()
    hold = tensor_arrays.holder(variables)
    first, again = hold(), hold()
    assert not context.context().list_function_names() - functions, "the first save waits for a trace"
    assert all(np.shares_memory(one, other) for one, other in zip(first, again, strict=True))
    assert [one.dtype for one in first] == [one.numpy().dtype for one in variables]
    variables[0].assign_add([1.0, 1.0])
    variables[1].assign([4])
    assert [one.tolist() for one in first] == [[1.0, 2.0], [3], [0.5]]
    assert [one.tolist() for one in hold()] == [[2.0, 3.0], [4], [0.5]]


def test_a_running_fit_is_found_from_a_callback() -> None:
    looks = Looks()
    model().fit(X, Y, batch_size=2, epochs=2, verbose=0, callbacks=[looks])
    expected = {"when told": True, "epochs": 2, "steps": 2, "batch size": 2, "callbacks": True}
    assert looks.found == expected, moved("keras/epochs.py", f"a local variable of fit (found: {looks.found})")


class OwnStep(keras.Sequential):
    """Its `train_step` calls the batch otherwise than Keras' does."""

    def train_step(self, examples: Any) -> Any:
        x, y, _ = examples
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("kind", [keras.Sequential, OwnStep])
def test_a_batch_is_found_from_the_optimizer(kind: type) -> None:
    seen = []

    class Asks(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            seen.append(keras_trainer.data_of_calling_step())
            return super().apply(grads, trainable_variables)

    plain = kind([keras.Input((2,)), keras.layers.Dense(1)])
    plain.compile(Asks(0.1), "mse", run_eagerly=True)
    plain.train_on_batch(X, Y)
    assert seen, moved("keras/optimizer.py", "Optimizer.apply, which train_step calls")
    assert seen[0] is not None, moved("keras/model.py", "the frame of train_step, seen from Optimizer.apply")
    np.testing.assert_array_equal(seen[0][0], X)


@pytest.mark.parametrize("method", ["compile", "fit", "evaluate", "predict", "train_on_batch", "test_on_batch"])
def test_a_model_is_found_by_its_strategy(method: str) -> None:
    with strategy().scope():
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
    assert keras_trainer.is_marked(made), moved("keras/model.py", "the frame of compile, seen from a new variable")
    if method == "compile":
        return
    planted.of_model(made).strategy = None
    getattr(made, method)(X) if method == "predict" else getattr(made, method)(X, Y)
    assert keras_trainer.is_marked(made), moved("keras/model.py", f"the frame of {method}, seen from a strategy")


@pytest.mark.parametrize("path", private_names.files(), ids=private_names.file)
def test_every_private_name_has_an_assertion(path: Any) -> None:
    file = private_names.file(path)
    assert file in NAMES, f"tfdist/compat/{file} is new: give it an entry in NAMES"
    of_modules = {attribute for _, _, attribute in private_names.attributes(path)}
    of_modules |= {name for _, name in private_names.imports(path)}
    bare = private_names.names(path) - NAMES[file].keys() - of_modules
    assert not bare, f"tfdist/compat/{file} uses {sorted(bare)}: say in NAMES what they must be found in"


def test_every_assertion_is_for_a_name_that_is_used() -> None:
    for path in private_names.files():
        file = private_names.file(path)
        idle = {name for name in NAMES[file] if name not in path.read_text(encoding="utf-8")}
        assert not idle, f"NAMES has {sorted(idle)}, which tfdist/compat/{file} no longer uses"
    assert NAMES.keys() == set(map(private_names.file, private_names.files()))


def test_a_name_without_an_assertion_is_seen(tmp_path: Any) -> None:
    source = tmp_path / "new.py"
    source.write_text(
        "import keras\nfrom tensorflow.python.eager import context as c\nfrom keras.src import tree\n"
        "class A(keras.Layer):\n    def _build_it(self):\n        self._mine = getattr(self, '_theirs')\n"
        "class B:\n    def __init__(self):\n        self._own = 1\n"
        "def f(x):\n    c.context()._handle\n    c._flag\n    return x._hidden._own\n"
    )
    assert private_names.names(source) == {"_build_it", "_mine", "_theirs", "_handle", "_flag", "_hidden"}
    assert private_names.imports(source) == [("tensorflow.python.eager", "context"), ("keras.src", "tree")]
    eager = "tensorflow.python.eager"
    assert private_names.attributes(source) == [
        (eager, "context", "_flag"),
        (eager, "context", "context"),
        (eager, "context.context()", "_handle"),
    ]


@pytest.mark.parametrize(
    ("tested", "says"),
    [((), 'pip install "tensorflow=='), (None, "replaced methods")],
)
def test_a_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tested: Any, says: str) -> None:
    here = (version_pairs.Pair(Version(tf.__version__).public, keras.__version__),)
    monkeypatch.setattr(version_pairs, "TESTED", here if tested is None else tested)
    assert says in str(keras_frames.refuse("Model.fit", seen="is not found"))


@pytest.mark.parametrize("kind", layer_methods.ATTENTIONS)
def test_attentions_have_their_parts(kind: Any) -> None:
    made = attention(kind)
    missing = [name for name in ATTENTION if not hasattr(made, name)]
    assert not missing, moved("keras/layers.py", f"{', '.join(missing)} of {kind.__name__}")
    dropout, heads = layer_methods.dropout_of_scores(made)
    assert (type(dropout), heads) == (keras.layers.Dropout, -3), moved("keras/layers.py", "the scores of an attention")


def test_what_hangs_on_tensors_is_found() -> None:
    assert hung() == [{}, True, True, ["_keras_logits"], ["_keras_mask"], []], moved("keras/symbolic/hanging.py", "it")


def test_a_name_that_has_moved_is_seen() -> None:
    assert not is_in(keras.Model, "_no_such_name")
    assert not is_in(model(), "_no_such_name")
    with pytest.raises(ImportError):
        imported("tensorflow.python.eager", "no_such_module")
    assert "tfdist/compat/x.py needs it (TensorFlow" in moved("x.py", "it")
