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

from tfdist.build.installed import find_installed
from tfdist.doctor import cgroup, framework
from tfdist.doctor.checks import (
    clock,
    cluster_environment,
    collectives,
    devices,
    horovod,
    native,
    network,
    precision,
    proxies,
    resources,
    toolchain,
    versions,
)
from tfdist.doctor.finding import Finding, warning
from tfdist.native.target import version_of_tensorflow

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
    packages = cache(versions.installed_packages)
    needs = cache(versions.declared_needs)
    limits = cache(cgroup.observe)
    return (
        Check("python", lambda: versions.judge_python(needs(), platform.python_version())),
        Check("requirements", lambda: versions.judge_requirements(needs(), packages())),
        Check("tensorflow", lambda: versions.judge_tensorflow(asked(), packages())),
        Check("keras", lambda: versions.judge_keras(asked(), packages(), environ)),
        Check("versions", lambda: versions.judge_pair(asked(), packages())),
        Check("keras-backend", lambda: versions.judge_keras_backend(environ, versions.keras_config(environ))),
        Check("numpy", lambda: versions.judge_numpy(packages())),
        Check("tensorflow-io", lambda: versions.judge_tensorflow_io(packages())),
        Check("horovod", lambda: _horovod(asked())),
        Check("gpus", lambda: _gpus(asked(), timeout_seconds, environ)),
        Check("nccl", lambda: devices.judge_nccl(asked(), packages())),
        Check("precision", lambda: precision.judge(asked(), precision.observe_processor())),
        Check("compiler", lambda: toolchain.judge(toolchain.observe(environ))),
        Check("native", lambda: [native.judge(native.observe(environ))]),
        Check("collectives", lambda: [collectives.judge(collectives.observe(environ), asked().gpus)]),
        Check("memory", lambda: resources.judge_memory(resources.observe_memory(limits()))),
        Check("processors", lambda: resources.judge_processors(resources.observe_processors(limits()))),
        Check("shared-memory", lambda: resources.judge_shared_memory(resources.observe_shared_memory())),
        Check("open-files", lambda: resources.judge_open_files(*resources.observe_open_files())),
        Check("ports", lambda: network.judge_ports(network.observe_ports())),
        Check("hostname", lambda: network.judge_hostname(network.observe_hostname(timeout_seconds=_SHORT_SECONDS))),
        Check("proxies", lambda: proxies.judge(environ, cluster_environment.worker_hosts(environ))),
        Check("cluster", lambda: cluster_environment.judge(environ)),
        Check("clock", lambda: clock.judge(clock.observe())),
    )


def _horovod(asked: framework.Framework) -> list[Finding]:
    return horovod.judge(asked, find_installed(), tensorflow=version_of_tensorflow())


def _gpus(asked: framework.Framework, timeout_seconds: float, environ: Mapping[str, str]) -> list[Finding]:
    return devices.judge_gpus(asked, devices.observe_driver(timeout_seconds=timeout_seconds), environ)
