"""The locked requirements of the images: all pinned, all hashed, and what setup.py asks for."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tfdist_horovod.recipe import RUNTIME

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
LOCKS = ("build", "cpu", "gpu", "notebook")
IMAGES = ("cpu", "gpu", "notebook")
MACHINE = {"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}


@cache
def entries(name: str) -> tuple[str, ...]:
    """The requirements in a lock, each with its hashes, on one line."""
    text = (DOCKER / f"requirements-{name}.txt").read_text()
    lines = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return tuple(line for line in lines if line.strip())


@cache
def pins(name: str) -> dict[str, Version]:
    """The version of each package in a lock."""
    found = (re.match(r"([\w.-]+)==(\S+)", entry) for entry in entries(name))
    return {canonicalize_name(one[1]): Version(one[2]) for one in found if one}


ASK = """
import json
from setuptools import Distribution
from distutils.core import run_setup
said = run_setup("setup.py", stop_after="init")
print(json.dumps({"": said.install_requires, **said.extras_require}))
"""


@cache
def setup() -> dict[str, list[str]]:
    """Return the requirements of setup.py by extra, "" for the base. It runs in a child, which it may change."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    return json.loads(done.stdout)


def wanted(image: str) -> list[Requirement]:
    """Return the requirements of an image: tfdist's, the extras that the Makefile names, and those of its own file."""
    makefile = (ROOT / "Makefile").read_text()
    extras = []
    for name in ("IMAGE", image.upper()):
        found = re.search(rf"^{name}_EXTRAS := (.+)$", makefile, re.MULTILINE)
        extras += found[1].split() if found else []
    own = [DOCKER / "horovod.in", *DOCKER.glob(f"{image}.in")]
    lines = [line for file in own for line in file.read_text().splitlines() if not line.startswith("#")]
    asked = [need for extra in ("", *extras) for need in setup()[extra]]
    assert len(extras) >= 4
    return [Requirement(line) for line in [*asked, *lines] if line]


@pytest.mark.parametrize("name", LOCKS)
def test_everything_is_pinned_and_hashed(name: str) -> None:
    for entry in entries(name):
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", entry), entry[:100]
    assert len(pins(name)) == len(entries(name))


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_has_what_setup_asks_for(image: str) -> None:
    for requirement in wanted(image):
        if requirement.marker is None or requirement.marker.evaluate(MACHINE):
            version = pins(image).get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not in requirements-{image}.txt: make docker-lock"
            assert version in requirement.specifier, f"{requirement}, but {version} is locked: make docker-lock"


def test_images_share_their_versions() -> None:
    for image in ("gpu", "notebook"):
        assert pins("cpu").items() <= pins(image).items()


def test_the_gpu_image_has_cuda_and_nccl_and_the_others_have_not() -> None:
    assert {"nvidia-nccl-cu12", "nvidia-cudnn-cu12", "nvidia-cuda-runtime-cu12"} <= pins("gpu").keys()
    assert not [name for image in ("cpu", "notebook") for name in pins(image) if name.startswith("nvidia-")]


def test_what_horovod_needs_is_locked_too() -> None:
    assert {canonicalize_name(name) for name in RUNTIME} <= pins("cpu").keys()
