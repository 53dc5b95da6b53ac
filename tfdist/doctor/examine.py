"""The list of checks, and a function that runs each by itself: a check that crashes is a finding and hides no other."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from tfdist.doctor import cgroup, framework, gpu_check, machine_check, native_check, network_check, software_check
from tfdist.doctor.finding import Finding, warning
from tfdist.native.build_target import version_of_tensorflow
from tfdist.native.horovod_record import find_installed
from tfdist.processes import shared_memory

_SHORT_SECONDS = 20.0


@dataclass(frozen=True)
class Check:
    """A check of ``tfdist doctor``.

    Attributes:
        name: the name of its findings.
        look: the function that performs the check and returns its findings.
    """

    name: str
    look: Callable[[], Iterable[Finding]]


def examine(checks: Iterable[Check]) -> list[Finding]:
    """Return the findings of all checks, in the order of the checks; an exception in a check becomes a finding."""
    return [finding for check in checks for finding in _look(check)]


def _look(check: Check) -> list[Finding]:
    try:
        return list(check.look())
    except Exception as error:  # noqa: BLE001 - the other checks must run whatever the error is
        why = "the check itself failed, so what it looks at is not known"
        return [warning(check.name, f"{type(error).__name__}: {error}", why)]


def standard_checks(*, timeout_seconds: float, environ: Mapping[str, str] | None = None) -> Sequence[Check]:
    """Return the checks of ``tfdist doctor``. Nothing is examined before they run.

    Args:
        timeout_seconds: deadline for loading TensorFlow in a child process, and for ``nvidia-smi``.
        environ: the environment to judge; that of this process by default.
    Returns:
        The checks in the order of their reports. One child process loads TensorFlow for all of them.

    Example:
        >>> [check.name for check in standard_checks(timeout_seconds=60)][:2]
        ['python', 'requirements']
    """
    environ = os.environ if environ is None else environ
    asked = cache(lambda: framework.observe(environ, timeout_seconds=timeout_seconds))
    packages = cache(software_check.installed_packages)
    driver = partial(gpu_check.observe_driver, timeout_seconds)
    needs = cache(software_check.declared_needs)
    limits = cache(cgroup.observe)
    return (
        Check("python", lambda: software_check.judge_python(needs(), platform.python_version())),
        Check("requirements", lambda: software_check.judge_requirements(needs(), packages())),
        Check("tensorflow", lambda: software_check.judge_tensorflow(asked(), packages())),
        Check("keras", lambda: software_check.judge_keras(asked(), packages(), environ)),
        Check("versions", lambda: software_check.judge_pair(asked(), packages())),
        Check(
            "keras-backend", lambda: software_check.judge_keras_backend(environ, software_check.keras_config(environ))
        ),
        Check("numpy", lambda: software_check.judge_numpy(packages())),
        Check("tensorflow-io", lambda: software_check.judge_tensorflow_io(packages())),
        Check(
            "horovod",
            lambda: software_check.judge_horovod(asked(), find_installed(), tensorflow=version_of_tensorflow()),
        ),
        Check("gpus", lambda: gpu_check.judge_gpus(asked(), driver(), environ, packages())),
        Check("nccl", lambda: gpu_check.judge_nccl(asked(), packages())),
        Check("precision", lambda: gpu_check.judge_precision(asked(), gpu_check.observe_processor())),
        Check("compiler", lambda: software_check.judge_toolchain(software_check.observe_toolchain(environ))),
        Check("native", lambda: [native_check.judge_native(native_check.observe_native(environ))]),
        Check(
            "collectives",
            lambda: [native_check.judge_collectives(native_check.observe_collectives(environ), asked().gpus)],
        ),
        Check("memory", lambda: machine_check.judge_memory(machine_check.observe_memory(limits()))),
        Check("processors", lambda: machine_check.judge_processors(machine_check.observe_processors(limits()))),
        Check("shared-memory", lambda: machine_check.judge_shared_memory(shared_memory.observe())),
        Check("open-files", lambda: machine_check.judge_open_files(*machine_check.observe_open_files())),
        Check("ports", lambda: network_check.judge_ports(network_check.observe_ports())),
        Check(
            "hostname",
            lambda: network_check.judge_hostname(network_check.observe_hostname(timeout_seconds=_SHORT_SECONDS)),
        ),
        Check("proxies", lambda: network_check.judge_proxies(environ, network_check.worker_hosts(environ))),
        Check("cluster", lambda: network_check.judge_cluster(environ)),
        Check("clock", lambda: machine_check.judge_clock(machine_check.observe_clock())),
    )
