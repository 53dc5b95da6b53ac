"""Rows and columns: what exists, and what a user's words select."""

import importlib
import pkgutil

import pytest

from tests.refusals import refused
from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.verify import column, feature, features
from tfdist.verify.column import COLUMNS, Column


def test_every_registered_strategy_has_a_column() -> None:
    assert {entry.strategy for entry in COLUMNS} == set(strategy_table.names())
    assert len({entry.name for entry in COLUMNS}) == len(COLUMNS)


def test_every_file_of_features_is_in_the_order_and_holds_some() -> None:
    package = f"{features.__name__}."
    found = [module for module in pkgutil.walk_packages(features.__path__, package) if not module.ispkg]
    files = {module.name.removeprefix(package) for module in found}
    assert files == set(features.ORDER)
    assert files == {entry.module.removeprefix(package) for entry in feature.features().values()}
    groups = [entry.rpartition(".")[2] for entry in features.ORDER]
    assert len(set(groups)) == len(groups), "a group is selected by its name, so no two files have the same one"


def test_features_stand_in_the_order_of_files() -> None:
    every = list(feature.features().values())
    assert every[0].name == "even"
    files = [f"{features.__name__}.{file}" for file in features.ORDER]
    places = [files.index(entry.module) for entry in every]
    assert places == sorted(places)


def test_the_default_reference_is_the_feature_itself() -> None:
    assert feature.features()["even"].reference is feature.features()["even"].function
    assert feature.features()["batch_norm"].reference is not feature.features()["batch_norm"].function


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["even"], ["even"]),
        (["clip*", "even"], ["even", "clipnorm", "clipvalue"]),
        (["saving"], ["save_and_load", "save_and_load_weights", "load_outside_and_copy"]),
    ],
)
def test_features_by_name_glob_and_group(patterns: list[str], names: list[str]) -> None:
    assert [entry.name for entry in feature.select(patterns)] == names


def test_no_pattern_selects_all() -> None:
    assert feature.select([]) == tuple(feature.features().values())
    assert column.select([]) == COLUMNS


@pytest.mark.parametrize("pattern", ["evne", "", "EVEN", "*.py"])
def test_an_unknown_feature_is_named_with_what_exists(pattern: str) -> None:
    with refused(ConfigError, name="--feature", received=pattern, mentions=["batches, inputs"]):
        feature.select(["even", pattern])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("mirrored", ["mirrored-2", "mirrored-3", "mirrored-native-2"]),
        ("multi-worker-2x*", ["multi-worker-2x1", "multi-worker-2x2"]),
        ("ring", ["ring-2", "ring-3", "ring-2x2"]),
        ("mirrored-3", ["mirrored-3"]),
    ],
)
def test_columns_by_strategy_glob_and_name(pattern: str, names: list[str]) -> None:
    assert [entry.name for entry in column.select([pattern])] == names


def test_an_unknown_column_is_named_with_what_exists() -> None:
    with refused(ConfigError, name="--strategy", received="mirrored-4", mentions=["multi-worker-2x2"]):
        column.select(["mirrored-4"])


def test_columns_are_checked() -> None:
    assert Column(name="x", strategy="multi-worker", workers=2, replicas_per_worker=3).replicas == 6
    with refused(ConfigError, name="workers", received=2, mentions=["one process"]):
        Column(name="x", strategy="mirrored", workers=2)
    with refused(ConfigError, name="strategy", received="ring-of-fire", mentions=["'multi-worker'"]):
        Column(name="x", strategy="ring-of-fire")
    with pytest.raises(ConfigTypeError):
        Column(name="x", strategy="mirrored", replicas_per_worker=True)


def test_features_for_several_workers_leave_single_processes_out() -> None:
    entry = feature.features()["seeds_differ"]
    left_out = ["mirrored-2", "mirrored-3", "mirrored-native-2", "parameter-server-2", "parameter-server-3"]
    left_out += ["model-parallel-1x2-devices", "model-parallel-2x2-devices"]
    assert [one.name for one in COLUMNS if not entry.applies(one)] == left_out


def test_a_name_is_taken_once_and_a_feature_says_what_it_trains() -> None:
    def even(ctx: object) -> dict[str, float]:
        """Another one."""
        return {}

    def silent(ctx: object) -> dict[str, float]:
        return {}

    with refused(ConfigError, name="even", mentions=["two features"]):
        feature.feature()(even)
    with refused(ConfigError, name="silent", mentions=["no docstring"]):
        feature.feature()(silent)
    with refused(ConfigError, name="feature", received="silent"):
        feature.registered("silent")


def test_a_feature_is_found_again_where_it_is_registered() -> None:
    for entry in feature.features().values():
        importlib.import_module(entry.module)
        assert feature.registered(entry.name) is entry
