"""The state that a process inherits from its parent, which differs in a worker that another process forks.

`identity` is the state that must be equal: libraries have read it during their import, or it cannot be handed over.
`Conditions` is the state that is handed over.
"""

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tfdist
from tfdist.variables import PREFIX

# Prefixes of the variables that TensorFlow, Keras, NumPy and the libraries below them may read during their import.
# Other variables are handed over to each worker.
_READ = (
    *("TF_", "TF2_", "XLA_", "KERAS_", "CUDA_", "NVIDIA_", "ROCM_", "HIP_", "TPU_", "NCCL_", "LD_", "PYTHON", "OMP_"),
    *("GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NVPL_", "NUMEXPR_"),
    *("NPY_", "NUMPY_", "ONEDNN_", "DNNL_"),
    *("HDF5_", "ABSL_", "GLOG_", "GRPC_", "GCS_", "MALLOC_", "GLIBC_", "GFORTRAN_", "LLVM_", "OPENSSL_", "LC_"),
    *("SCIPY_", "SKLEARN_", "JOBLIB_", "LOKY_", "PILLOW_", "PSUTIL_", "MPL", "MATPLOTLIB", "XDG_C", "XDG_DATA_HOME"),
    *("HOROVOD_", "ACC_", "TEST_", "PROTOCOL_BUFFERS_", "TEMPORARILY_", "TRAITLETS_", "WRAPT_", "FREETYPE_"),
)
_READ_WHOLE = ("HOME", "LANG", "LANGUAGE", "TZ")
# Variables that are read only after the imports: TensorFlow reads the second one when it first looks for GPUs.
_OF_ONE_WORKER = ("TF_CONFIG", "TF_FORCE_GPU_ALLOW_GROWTH")
_LISTS_OF_FOLDERS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")  # an entry may be relative, or empty
_STATUS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_MASKS = ("Cpus_allowed", "Mems_allowed")


def is_read_by_imports(name: str) -> bool:
    """Return whether libraries may read this variable during their import."""
    return (name.startswith(_READ) or name in _READ_WHOLE) and name not in _OF_ONE_WORKER


def of_imports(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries may read during their import, without those of a job.

    Example:
        >>> of_imports({"XLA_FLAGS": "", "TF_CONFIG": "{}", "TFDIST_STRATEGY": "ring", "LR": "0.1"})
        {'XLA_FLAGS': ''}
    """
    return {name: value for name, value in environ.items() if is_read_by_imports(name) and not name.startswith(PREFIX)}


def identity(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the facts, by name, that this process must share with one that forks a worker with this environment."""
    status = _status()
    root = os.stat("/")
    spaces = {one: os.readlink(f"/proc/self/ns/{one}") for one in sorted(os.listdir("/proc/self/ns"))}
    own = {
        "Python": f"{sys.executable} {sys.version} {sys.prefix}",
        "tfdist": f"{tfdist.__version__} {Path(tfdist.__file__).parent}",
        "the user and its rights": " ".join(status[one] for one in _STATUS) + _text("/proc/self/attr/current"),
        "the processors": " ".join([*(status[one] for one in _MASKS), str(os.sched_getscheduler(0))]),
        "the container": " ".join(
            [_text("/proc/sys/kernel/random/boot_id"), str((root.st_dev, root.st_ino)), *spaces.values()]
        ),
        "the limit of stacks": str(resource.getrlimit(resource.RLIMIT_STACK)),
        "the personality": _text("/proc/self/personality"),
    }
    lists = [environ[name].split(os.pathsep) for name in _LISTS_OF_FOLDERS if environ.get(name)]
    if not all(os.path.isabs(one) for entries in lists for one in entries):
        own["the working directory"] = os.getcwd()
    return own | of_imports(environ)


def digest(known: Mapping[str, str]) -> str:
    """Return a short name for an identity."""
    return hashlib.sha256(json.dumps(dict(known), sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the facts that differ.

    Example:
        >>> differences({"Python": "a", "TZ": "UTC"}, {"Python": "a", "XLA_FLAGS": ""})
        ['TZ', 'XLA_FLAGS']
    """
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The inherited state that a forking process can hand over to a worker."""

    umask: int
    nice: int
    oom: str  # the kernel's adjustment of the process's score for when memory is short
    limits: Mapping[str, tuple[int, int]]  # soft and hard, by the numbers of the resources as texts
    ignored: tuple[int, ...]  # signals
    blocked: tuple[int, ...]
    groups: str  # control groups, in the kernel's format

    @classmethod
    def here(cls) -> "Conditions":
        """Return the conditions of this process, which a child of it would inherit."""
        numbers = sorted({getattr(resource, one) for one in dir(resource) if one.startswith("RLIMIT_")})
        ignored = [one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN]
        # Python itself ignores these, and restores the default in its children
        ignored = [one for one in ignored if one not in (signal.SIGPIPE, signal.SIGXFSZ)]
        return cls(
            umask=int(_status()["Umask"], 8),
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            oom=_text("/proc/self/oom_score_adj"),
            limits={str(one): resource.getrlimit(one) for one in numbers},
            ignored=tuple(map(int, ignored)),
            blocked=tuple(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            groups=_text("/proc/self/cgroup"),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Conditions":
        limits = {number: (soft, hard) for number, (soft, hard) in values["limits"].items()}
        signals = {one: tuple(values[one]) for one in ("ignored", "blocked")}
        return cls(**{**values, **signals, "limits": limits})

    def take(self) -> list[str]:
        """Apply the conditions to this process, except signals; return the names of those that failed."""
        os.umask(self.umask)
        with contextlib.suppress(OSError):
            _join_groups(self.groups)
        with contextlib.suppress(OSError, ValueError):
            Path("/proc/self/oom_score_adj").write_text(self.oom)
            for number, limits in self.limits.items():
                resource.setrlimit(int(number), limits)
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        now = Conditions.here()
        return [one for one in ("umask", "nice", "oom", "limits", "groups") if getattr(now, one) != getattr(self, one)]

    def take_signals(self) -> None:
        """Ignore and block the same signals as `tfdist run`."""
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)


def _join_groups(wanted: str) -> None:
    """Move this process into the given control groups; raise `OSError` if that is not permitted."""
    present = set(_text("/proc/self/cgroup").splitlines())
    places: dict[str, str] = {}
    for line in _text("/proc/self/mounts").splitlines():
        _, place, kind, options, *_ = line.split()
        if kind.startswith("cgroup"):
            places |= dict.fromkeys([""] if kind == "cgroup2" else options.split(","), place)
    for line in wanted.splitlines():
        _, controllers, path = line.split(":", 2)
        if line not in present and (root := places.get(controllers.split(",")[0])) is not None:
            Path(f"{root}{path}", "cgroup.procs").write_text(str(os.getpid()))


def _status() -> dict[str, str]:
    lines = (one.partition(":") for one in _text("/proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _text(path: str) -> str:
    """Return the text of a file of the kernel; empty if it cannot be read."""
    try:
        return Path(path).read_text().rstrip("\0\n")
    except OSError:
        return ""
