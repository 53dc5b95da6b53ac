"""Versions that fit each other, the tools that builds need, and Horovod."""

import contextlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tfdist.compat.version_pairs import KERAS, MAIN, Standing, judge
from tfdist.doctor import child
from tfdist.doctor.finding import Finding, note, ok, problem, warning
from tfdist.doctor.framework import Framework
from tfdist.native.horovod_record import Installed

# each of these brings the module `tensorflow`; two of them overwrite each other's files
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "intel-tensorflow", "tensorflow-rocm", "tf-nightly")
_OWNERS = ("tfdist", "tensorflow", "keras")
_TRUE = ("1", "true", "yes", "on")


def installed_packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(canonicalize_name(name), distribution.version)
    return found


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The Python versions and the other distributions that a distribution requires, as its metadata writes them."""

    python: str = ""
    packages: tuple[str, ...] = ()


def declared_needs() -> dict[str, Needs]:
    """Return the requirements of tfdist, TensorFlow and Keras, as far as they are installed."""
    found: dict[str, Needs] = {}
    for owner in _OWNERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            metadata = importlib.metadata.metadata(owner).json
            found[owner] = Needs(
                python=str(metadata.get("requires_python", "")), packages=tuple(metadata.get("requires_dist", ()))
            )
    return found


def judge_python(needs: Mapping[str, Needs], running: str) -> list[Finding]:
    for owner, need in needs.items():
        if not SpecifierSet(need.python).contains(running, prereleases=True):
            why = f"{owner} needs Python {need.python}"
            return [problem("python", running, why, "make PYTHON=/path/to/python3.11 demo   # after: make clean")]
    return [ok("python", running)]


def judge_requirements(needs: Mapping[str, Needs], packages: Mapping[str, str]) -> list[Finding]:
    findings = []
    for owner, declared in needs.items():
        for need in map(Requirement, declared.packages):
            if need.marker and not need.marker.evaluate({"extra": ""}):
                continue
            version = _version_of(canonicalize_name(need.name), packages)
            if version is None or not need.specifier.contains(version, prereleases=True):
                seen = f"{need.name} {version}" if version else f"{need.name} is not installed"
                why = f"{owner} {packages.get(owner, '')} needs {need.name}{need.specifier}"
                cure = f'python -m pip install "{need.name}{need.specifier}"'
                findings.append(problem("requirements", seen, why, cure))
    return findings or [ok("requirements", f"what {', '.join(needs)} need is installed")]


def _version_of(name: str, packages: Mapping[str, str]) -> str | None:
    names = TENSORFLOWS if name == "tensorflow" else (name,)
    return next((packages[each] for each in names if each in packages), None)


def judge_tensorflow(framework: Framework, packages: Mapping[str, str]) -> list[Finding]:
    findings = []
    claimants = [f"{name} {packages[name]}" for name in TENSORFLOWS if name in packages]
    if len(claimants) > 1:
        names = " ".join(name for name in TENSORFLOWS if name in packages)
        why = "they install the same files; what is left is a mixture"
        cure = f"python -m pip uninstall -y {names} && python -m pip install tensorflow"
        findings.append(problem("tensorflow", " and ".join(claimants), why, cure))
    if framework.error:
        seen = f"{claimants[0] if claimants else 'tensorflow'} does not load: {framework.error}"
        cure = "python -m pip install --force-reinstall tensorflow" if claimants else "python -m pip install tfdist"
        return [*findings, problem("tensorflow", seen, "nothing of tfdist trains without it", cure)]
    build = framework.build
    cuda = f"CUDA {build.get('cuda_version')}, cuDNN {build.get('cudnn_version')}"
    built = f"built for {cuda}" if build.get("is_cuda_build") else "built without CUDA"
    return [*findings, ok("tensorflow", f"{framework.version}, {built}")]


def judge_keras(framework: Framework, packages: Mapping[str, str], environ: Mapping[str, str]) -> list[Finding]:
    version = framework.keras or packages.get("keras", "")
    if environ.get("TF_USE_LEGACY_KERAS", "").lower() in _TRUE:
        seen = f"TF_USE_LEGACY_KERAS={environ['TF_USE_LEGACY_KERAS']}"
        why = "tf.keras is then Keras 2, which tfdist does not adapt: its models train without tfdist's corrections"
        return [problem("keras", seen, why, "unset TF_USE_LEGACY_KERAS")]
    if version and Version(version).major < 3:
        why = "tfdist is for Keras 3"
        return [problem("keras", f"Keras {version}", why, f'python -m pip install "keras{KERAS}"')]
    if framework.keras_error:
        cure = "python -m pip install --force-reinstall --no-deps keras"
        seen = f"{version} does not load: {framework.keras_error}"
        return [problem("keras", seen, "nothing trains without it", cure)]
    if "tf-keras" in packages:
        seen = f"{version}; tf_keras {packages['tf-keras']} is installed too"
        why = "a model from tf_keras is a Keras 2 model, which tfdist does not adapt; models from keras are right"
        return [note("keras", seen, why)]
    return [ok("keras", version)] if version else []


def judge_pair(framework: Framework, packages: Mapping[str, str]) -> list[Finding]:
    tensorflow = framework.version or _version_of("tensorflow", packages) or ""
    keras = framework.keras or packages.get("keras", "")
    if not tensorflow or not keras:
        return []
    found = judge(tensorflow, keras)
    if found.standing is Standing.TESTED:
        return [ok("versions", found.text)]
    cure = f'python -m pip install "tensorflow=={MAIN.tensorflow}" "keras=={MAIN.keras}"'
    if found.standing is Standing.UNTESTED:
        why = (
            "a strategy compares a training step with one device before it is first used, and refuses one that differs"
        )
        return [note("versions", found.text, why, cure)]
    why = "tfdist reads private names of both; a strategy refuses a pair that is out of range"
    return [problem("versions", found.text, why, cure)]


def judge_keras_backend(environ: Mapping[str, str], config: str = "") -> list[Finding]:
    """Judge the backend that Keras chooses: KERAS_BACKEND, else the text of its configuration file."""
    if "KERAS_BACKEND" in environ:
        backend, source, cure = environ["KERAS_BACKEND"], "KERAS_BACKEND", "export KERAS_BACKEND=tensorflow"
    else:
        backend, source = "tensorflow", "keras.json"
        with contextlib.suppress(ValueError, AttributeError):  # Keras, too, ignores a file that it cannot read
            backend = str(json.loads(config).get("backend", "tensorflow")) if config else "tensorflow"
        cure = """sed -i 's/"backend": *"[a-z]*"/"backend": "tensorflow"/' ~/.keras/keras.json"""
    if backend == "tensorflow":
        return [ok("keras-backend", "tensorflow")]
    why = "tfdist distributes through TensorFlow; with another backend a model never enters its strategies"
    return [problem("keras-backend", f"{backend!r} (from {source})", why, cure)]


def keras_config(environ: Mapping[str, str]) -> str:
    home = environ.get("KERAS_HOME") or str(Path(environ.get("HOME", "/"), ".keras"))
    path = Path(home, "keras.json")
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def judge_numpy(packages: Mapping[str, str]) -> list[Finding]:
    numpy, tensorflow = packages.get("numpy"), _version_of("tensorflow", packages)
    if numpy and tensorflow and Version(numpy).major >= 2 and Version(tensorflow) < Version("2.18"):
        why = f"TensorFlow {tensorflow} was built for NumPy 1 and fails when it is imported"
        return [problem("numpy", f"NumPy {numpy}", why, 'python -m pip install "numpy<2"')]
    pyarrow = packages.get("pyarrow")
    if numpy and pyarrow and Version(numpy).major < 2 and Version(pyarrow) >= Version("26"):
        why = "pyarrow 26 and later load with NumPy 2 only, and do not tell pip; CSV, Parquet and Arrow need pyarrow"
        return [warning("numpy", f"pyarrow {pyarrow} with NumPy {numpy}", why, 'python -m pip install "pyarrow<26"')]
    return [ok("numpy", numpy)] if numpy else []


def judge_tensorflow_io(packages: Mapping[str, str]) -> list[Finding]:
    version, tensorflow = packages.get("tensorflow-io"), _version_of("tensorflow", packages)
    if version is None or tensorflow is None:
        return []
    if Version(version) <= Version("0.37.1") and Version(tensorflow) >= Version("2.17"):
        seen = f"tensorflow-io {version} with TensorFlow {tensorflow}"
        why = "it loads under TensorFlow 2.16 alone (undefined symbols); pyarrow, h5py and fsspec read the same formats"
        return [warning("tensorflow-io", seen, why, "python -m pip uninstall -y tensorflow-io")]
    return [ok("tensorflow-io", version)]


_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The first line of each tool's ``--version``; empty if the tool is missing."""

    compiler: str = ""
    make: str = ""


def observe_toolchain(environ: Mapping[str, str] = os.environ) -> Toolchain:
    compilers = [environ["CXX"]] if environ.get("CXX") else ["c++", "g++", "clang++"]
    return Toolchain(compiler=next(filter(None, map(_version, compilers)), ""), make=_version("make"))


def _version(tool: str) -> str:
    program = shutil.which(tool)
    if program is None:
        return ""
    outcome = child.run([program, "--version"], timeout_seconds=_SECONDS)
    return outcome.output.splitlines()[0] if outcome.code == 0 and outcome.output else ""


def judge_toolchain(tools: Toolchain) -> list[Finding]:
    """Judge the tools of builds: of Horovod, and of tfdist's own ops, without which training is slower."""
    horovod = "only `tfdist build horovod` needs it; training does not"
    ops = "`tfdist build horovod` needs it; training does without, and is slower"
    rows = (("compiler", tools.compiler, "g++", ops), ("make", tools.make, "make", horovod))
    return [
        ok(name, version) if version else note(name, "not found", needs, f"apt-get install {package}")
        for name, version, package, needs in rows
    ]


_BUILD = "tfdist build horovod"


def judge_horovod(framework: Framework, found: Installed | None, *, tensorflow: str) -> list[Finding]:
    if found is None:
        why = "an option: only training over Horovod needs it"
        return [note("horovod", "not installed", why, _BUILD)]
    record = found.record
    if record is not None and tensorflow and record.tensorflow != tensorflow:
        seen = f"{found.version} was built for TensorFlow {record.tensorflow}, and {tensorflow} is installed"
        return [warning("horovod", seen, "a library built for another TensorFlow does not load, or crashes", _BUILD)]
    if framework.horovod is None:
        seen = f"{found.version} does not load: {framework.horovod_error or framework.error}"
        why = "it was built for another TensorFlow, or without TensorFlow"
        return [warning("horovod", seen, why, f"{_BUILD} --force")]
    has = [name for name, is_in in framework.horovod.items() if is_in]
    lacks = [name for name, is_in in framework.horovod.items() if not is_in]
    seen = f"{found.version}, built with {', '.join(has) or 'no transport'}"
    seen += f"; without {', '.join(lacks)}" if lacks else ""
    if framework.gpus and "nccl" in lacks:
        return [note("horovod", seen, "gradients on GPUs go through host memory", f"{_BUILD} --gpu")]
    return [ok("horovod", seen)]
