"""Slots of a search, and the jobs that trials are: what each launcher is asked for."""

from typing import Any

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.tune.search.search_settings import SearchSettings
from tfdist.tune.search.trial_jobs import command_of, is_forked, slots_of

HOSTS = "a:2,b=10.0.0.2:2"
ALLOCATION = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


def words(count: int | None = None, environ: Any = None, **options: Any) -> list[str]:
    settings = SearchSettings(target="train.py", metric="loss", **options)
    found = slots_of(settings, count, environ or {}, 4)
    return [" ".join(one.words[one.words.index("--engine") + 1 :]) if one.words else "here" for one in found]


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({}, {}, ["here"] * 4),
        ({"workers_per_trial": 2}, {}, ["here"] * 2),
        ({}, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, ["here"] * 3),
        ({"hosts": HOSTS}, {}, [f"ssh --hosts {one}:1" for one in ("a=a", "a=a", "b=10.0.0.2", "b=10.0.0.2")]),
        ({"hosts": HOSTS, "workers_per_trial": 3}, {}, ["ssh --hosts a=a:2,b=10.0.0.2:1"]),
        (
            {"launcher_name": "slurm", "workers_per_trial": 2},
            ALLOCATION,
            ["slurm --hosts n1=n1:2", "slurm --hosts n2=n2:2"],
        ),
        ({"launcher_name": "slurm", "count": 3}, {}, ["slurm"] * 3),
        ({"launcher_name": "ray", "count": 2}, {}, ["ray"] * 2),
        ({"launcher_name": "kubernetes", "count": 1}, {}, ["kubernetes"]),
    ],
)
def test_slots(options: dict[str, Any], environ: dict[str, str], expected: list[str]) -> None:
    assert words(environ=environ, **options) == expected


@pytest.mark.parametrize(
    ("options", "environ", "name"),
    [
        ({"launcher_name": "ray"}, {}, "--slots"),
        ({"launcher_name": "slurm"}, {}, "--slots"),
        ({"launcher_name": "agent", "hosts": HOSTS}, {}, "--engine"),
        ({"launcher_name": "local", "hosts": HOSTS}, {}, "--hosts"),
        ({"launcher_name": "ray", "hosts": HOSTS}, {}, "--hosts"),
        ({"hosts": HOSTS, "count": 5}, {}, "--slots"),
        ({"hosts": HOSTS, "workers_per_trial": 5}, {}, "--slots"),
        ({"hosts": "a:3,b:3", "workers_per_trial": 2, "gpus_per_worker": 1}, {}, "--hosts"),
        ({"launcher_name": "slurm", "gpus_per_worker": 1}, ALLOCATION, "--workers-per-trial"),
        ({"run_options": "-n 2"}, {}, "--run-options"),
        ({"run_options": "--hosts=a"}, {}, "--run-options"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], environ: dict[str, str], name: str) -> None:
    with refused(ConfigError, name=name):
        words(environ=environ, **options)


def test_workers_of_a_host_have_gpus_of_their_own() -> None:
    settings = SearchSettings(target="train.py", metric="loss", hosts=HOSTS, gpus_per_worker=2)
    assert [one.variables for one in slots_of(settings, None, {}, 4)] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "2,3"},
    ] * 2


def test_the_command_of_a_trial() -> None:
    settings = SearchSettings(
        target="package.train",
        is_module=True,
        arguments=("--epochs", "3"),
        metric="loss",
        strategy="multi-worker",
        workers_per_trial=2,
        launcher_name="ray",
        run_options="--cpus-per-worker 4 --ray-address 'a b'",
    )
    assert not is_forked(settings)
    (slot,) = slots_of(settings, 1, {}, 4)
    assert command_of(settings, slot) == (
        *("run", "-n", "2", "--engine", "ray", "--strategy", "multi-worker"),
        *("--cpus-per-worker", "4", "--ray-address", "a b", "-m", "package.train", "--epochs", "3"),
    )
    assert is_forked(SearchSettings(target="train.py", metric="loss"))
