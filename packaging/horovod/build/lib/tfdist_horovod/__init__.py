"""Build Horovod for the TensorFlow that is installed, and keep the wheel; loads no TensorFlow itself.

Each file has one part: what is built (`recipe`, `edits`) and for what (`build_tools`), the steps to a wheel
(`compiling`, `wheels`), where it is kept (`wheel_cache`), how programs run (`program`) and what their failure means
(`diagnose`), what is installed and whether it works (`installed`), what options add (`gpu`, `mpi_for_build`), and the
order of it all (`horovod_build`).
"""

from tfdist_horovod import gpu as gpu
from tfdist_horovod import mpi_for_build as mpi_for_build
from tfdist_horovod.horovod_build import Outcome, install
from tfdist_horovod.recipe import Options

__all__ = ["Options", "Outcome", "install"]
