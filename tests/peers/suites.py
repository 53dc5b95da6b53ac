"""The suites: files of Keras and TensorFlow, and the way in which each uses a strategy of tfdist."""

from dataclasses import dataclass
from enum import Enum


class Project(Enum):
    """The project that tests come from."""

    KERAS = "keras"
    TENSORFLOW = "tensorflow"


class Way(Enum):
    """The way in which tests use a strategy of tfdist."""

    SCOPE = "scope"  # each test runs in the scope of one
    REPLACED = "replaced"  # the tests make mirrored strategies, which are tfdist's
    COMBINATIONS = "combinations"  # the tests are generated from names of strategies, some of which are tfdist's


@dataclass(frozen=True)
class Suite:
    """Test files of one subject.

    Args:
        name: what it is called on the command line and in the table.
        project: in whose checkout the files are.
        files: patterns of paths, relative to the checkout.
        way: how a strategy of tfdist comes in.
        needs_checkout: whether the files are no part of the installed package.
    """

    name: str
    project: Project
    files: tuple[str, ...]
    way: Way = Way.SCOPE
    needs_checkout: bool = False


def _distribute(*subjects: str) -> tuple[str, ...]:
    return tuple(f"tensorflow/python/distribute/{subject}_test.py" for subject in subjects)


SUITES = (
    Suite("trainers", Project.KERAS, ("keras/src/trainers/*_test.py", "keras/src/trainers/data_adapters/*_test.py")),
    Suite("callbacks", Project.KERAS, ("keras/src/callbacks/*_test.py",)),
    Suite("optimizers", Project.KERAS, ("keras/src/optimizers/*_test.py", "keras/src/optimizers/schedules/*_test.py")),
    Suite("models", Project.KERAS, ("keras/src/models/*_test.py",)),
    Suite(
        "integration",
        Project.KERAS,
        ("integration_tests/basic_full_flow.py", "integration_tests/tf_custom_fit_test.py"),
        needs_checkout=True,
    ),
    Suite(
        "distribution",
        Project.KERAS,
        (
            "integration_tests/tf_distribute_training_test.py",
            "keras/src/backend/tensorflow/distribute_test.py",
            "keras/src/backend/tensorflow/optimizer_distribute_test.py",
        ),
        Way.REPLACED,
        needs_checkout=True,
    ),
    Suite(
        "common",
        Project.TENSORFLOW,
        _distribute("strategy_common", "zero_batch"),
        Way.COMBINATIONS,
        needs_checkout=True,
    ),
    Suite("loops", Project.TENSORFLOW, _distribute("custom_training_loop_*"), Way.COMBINATIONS, needs_checkout=True),
    Suite(
        "values",
        Project.TENSORFLOW,
        _distribute("values", "mirrored_values", "mirrored_variable", "vars", "moving_averages", "tf_function"),
        Way.COMBINATIONS,
        needs_checkout=True,
    ),
)
