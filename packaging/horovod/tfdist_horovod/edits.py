"""The changes to Horovod's sources, each the exact text that goes and the text that comes.

A text that is not found exactly once means other sources than this recipe was written for, and stops the build.

Example:
    >>> Edit("a.txt", "old", "new", why="an example").applied("an old text")
    'an new text'
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import UnsupportedError


@dataclass(frozen=True)
class Edit:
    """One replacement in one file.

    Attributes:
        path: the file, relative to the root of the sources.
        old: what stands there once.
        new: what takes its place.
        why: the reason.
    """

    path: str
    old: str
    new: str
    why: str

    def applied(self, text: str) -> str:
        """Return the text with the replacement."""
        found = text.count(self.old)
        if found != 1:
            raise UnsupportedError(
                f"{self.path} has the text {self.old!r} {found} times, not once: these are other sources than "
                "the recipe was written for. Fetch them again with --force; if that does not help, update tfdist.",
                path=self.path,
                name=self.old,
                received=found,
            )
        return text.replace(self.old, self.new)


FOR_TENSORFLOW = (
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
        why="XLA's headers moved; on the CPU the file registers nothing, on GPUs only what HOROVOD_ENABLE_XLA_OPS uses",
    ),
    Edit(
        "setup.py",
        "else 'RelWithDebInfo'",
        "else 'Release'",
        why="debug information is three quarters of the library and a good part of the time",
    ),
    Edit(
        "CMakeLists.txt",
        "    add_subdirectory(third_party/gloo)\n    include_directories",
        "    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)\n    include_directories",
        why="TensorFlow links the copy of gloo in C++17; the one in C++11 would be compiled for nobody",
    ),
)

_REFUSES = """\
    if int(getattr(keras, '__version__', '2').split('.')[0]) >= 3:
        raise RuntimeError(
            "Horovod's DistributedOptimizer averages no gradients under Keras 3: Keras does not call the methods that "
            "it overrides, and every rank would train by itself without a word. Train plain Keras under "
            "tfdist.strategies.RingStrategy, or write the loop with horovod.tensorflow.DistributedGradientTape.")

"""

FOR_EVERYBODY = (
    Edit(
        "horovod/common/controller.cc",
        "              // Cached message\n"
        "              auto bit = response_cache_.peek_cache_bit(tensor_name);\n"
        "              responses.push_back(response_cache_.get_response(bit));\n",
        "              // Cached message\n"
        "              auto bit = response_cache_.peek_cache_bit(tensor_name);\n"
        "              responses.push_back(response_cache_.peek_response(bit));\n",
        why="under HOROVOD_DISABLE_GROUP_FUSION the coordinator alone moved an entry of the cache whose order all "
        "ranks have to share",
    ),
    Edit(
        "horovod/common/gloo/gloo_context.cc",
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx = global_context.ctx;\n",
        "  device_attr.iface = global_context.gloo_iface_;\n"
        "  auto dev = CreateDevice(device_attr);\n\n  global_ctx = global_context.ctx;\n",
        why="process sets, the one of all ranks too, ignored HOROVOD_GLOO_IFACE: they listened at the address of the "
        "host's own name, on Debian 127.0.1.1, where no other host reaches them",
    ),
    Edit(
        "horovod/_keras/__init__.py",
        "    class _DistributedOptimizer(*optimizer.__class__.__bases__):\n",
        _REFUSES + "    class _DistributedOptimizer(*optimizer.__class__.__bases__):\n",
        why="a plain Keras 3 model under it trains without synchronizing and says nothing",
    ),
)

FOR_CPU = (
    Edit(
        "CMakeLists.txt",
        "check_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)\n    find_package(CUDAToolkit)\n",
        "if(FALSE)\n    find_package(CUDAToolkit)\n",
        why="a CUDA compiler that happens to be there, and perhaps does not fit g++, has no part in it",
    ),
)


def run_path(paths: Iterable[str], *, linked: bool) -> Edit:
    """Return the edit that says where the library looks for others when it is loaded."""
    old = 'set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib")\n'
    new = (
        f"set_target_properties(${{TF_TARGET_LIB}} PROPERTIES BUILD_WITH_INSTALL_RPATH TRUE "
        f'INSTALL_RPATH_USE_LINK_PATH {"TRUE" if linked else "FALSE"} INSTALL_RPATH "{";".join(paths)}")\n'
    )
    why = "wheels lie beside each other wherever they are installed, and not where the build found them"
    return Edit("horovod/tensorflow/CMakeLists.txt", old, old + new, why=why)


def apply(edits: Iterable[Edit], root: Path) -> None:
    """Apply the edits to the sources under ``root``; either all of them or none."""
    changed: dict[Path, str] = {}
    for edit in edits:
        path = root / edit.path
        try:
            text = changed.get(path) or path.read_text(encoding="utf-8")
        except OSError as error:
            raise UnsupportedError(
                f"Horovod's sources have no readable {edit.path} ({error}): these are other sources than the recipe "
                "was written for. Fetch them again with --force; if that does not help, update tfdist.",
                path=edit.path,
            ) from error
        changed[path] = edit.applied(text)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
