"""The list of checks, and their run: each alone, so that one that crashes is a finding and hides no other.

Example:
    >>> [finding.level.name for finding in examine([Check("broken", lambda: 1 / 0)])]
    ['WARNING']
"""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tfdist.doctor import cgroup, framework
from tfdist.doctor.checks import (
    clock_check,
    cluster_check,
    collectives_check,
    devices_check,
    horovod_check,
    native_check,
    network_check,
    precision_check,
    proxies_check,
    resources_check,
    toolchain_check,
    versions_check,
)
from tfdist.doctor.finding import Finding, warning
from tfdist.native.build_target import version_of_tensorflow
from tfdist.native.horovod_record import find_installed

_SHORT_SECONDS = 20.0


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: which its findings have.
        look: looks, and returns what it found.
    """

    name: str
    look: Callable[[], Iterable[Finding]]


def examine(checks: Iterable[Check]) -> list[Finding]:
    """Return the findings of all checks, in their order; a check that raises becomes a finding that says so."""
    return [finding for check in checks for finding in _look(check)]


def _look(check: Check) -> list[Finding]:
    try:
        return list(check.look())
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks are still wanted
        why = "the check itself failed, so what it looks at is not known"
        return [warning(check.name, f"{type(error).__name__}: {error}", why)]


def standard_checks(*, timeout_seconds: float, environ: Mapping[str, str] | None = None) -> Sequence[Check]:
    """Return the checks of ``tfdist doctor``; nothing is looked at before they run.

    Args:
        timeout_seconds: deadline for loading TensorFlow in a child process, and for ``nvidia-smi``.
        environ: the environment to judge; this process' own by default.
    Returns:
        The checks in the order in which they are reported. TensorFlow is loaded once, in one child, for all of them.

    Example:
        >>> [check.name for check in standard_checks(timeout_seconds=60)][:2]
        ['python', 'requirements']
    """
    environ = os.environ if environ is None else environ
    asked = cache(lambda: framework.observe(environ, timeout_seconds=timeout_seconds))
    packages = cache(versions_check.installed_packages)
    needs = cache(versions_check.declared_needs)
    limits = cache(cgroup.observe)
    return (
        Check("python", lambda: versions_check.judge_python(needs(), platform.python_version())),
        Check("requirements", lambda: versions_check.judge_requirements(needs(), packages())),
        Check("tensorflow", lambda: versions_check.judge_tensorflow(asked(), packages())),
        Check("keras", lambda: versions_check.judge_keras(asked(), packages(), environ)),
        Check("versions", lambda: versions_check.judge_pair(asked(), packages())),
        Check(
            "keras-backend", lambda: versions_check.judge_keras_backend(environ, versions_check.keras_config(environ))
        ),
        Check("numpy", lambda: versions_check.judge_numpy(packages())),
        Check("tensorflow-io", lambda: versions_check.judge_tensorflow_io(packages())),
        Check("horovod", lambda: _horovod(asked())),
        Check("gpus", lambda: _gpus(asked(), timeout_seconds, environ)),
        Check("nccl", lambda: devices_check.judge_nccl(asked(), packages())),
        Check("precision", lambda: precision_check.judge(asked(), precision_check.observe_processor())),
        Check("compiler", lambda: toolchain_check.judge(toolchain_check.observe(environ))),
        Check("native", lambda: [native_check.judge(native_check.observe(environ))]),
        Check("collectives", lambda: [collectives_check.judge(collectives_check.observe(environ), asked().gpus)]),
        Check("memory", lambda: resources_check.judge_memory(resources_check.observe_memory(limits()))),
        Check("processors", lambda: resources_check.judge_processors(resources_check.observe_processors(limits()))),
        Check("shared-memory", lambda: resources_check.judge_shared_memory(resources_check.observe_shared_memory())),
        Check("open-files", lambda: resources_check.judge_open_files(*resources_check.observe_open_files())),
        Check("ports", lambda: network_check.judge_ports(network_check.observe_ports())),
        Check(
            "hostname",
            lambda: network_check.judge_hostname(network_check.observe_hostname(timeout_seconds=_SHORT_SECONDS)),
        ),
        Check("proxies", lambda: proxies_check.judge(environ, cluster_check.worker_hosts(environ))),
        Check("cluster", lambda: cluster_check.judge(environ)),
        Check("clock", lambda: clock_check.judge(clock_check.observe())),
    )


def _horovod(asked: framework.Framework) -> list[Finding]:
    return horovod_check.judge(asked, find_installed(), tensorflow=version_of_tensorflow())


def _gpus(asked: framework.Framework, timeout_seconds: float, environ: Mapping[str, str]) -> list[Finding]:
    return devices_check.judge_gpus(asked, devices_check.observe_driver(timeout_seconds=timeout_seconds), environ)
