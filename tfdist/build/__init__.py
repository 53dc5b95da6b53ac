"""Build Horovod for the TensorFlow that is installed, and keep the wheel; loads no TensorFlow itself.

Each file has one part: what is built (`recipe`, `edits`) and for what (`target`), the steps to a wheel (`compiling`,
`wheels`), where it is kept (`cache`), how programs run (`program`) and what their failure means (`cause`), what is
installed and whether it works (`installed`), what options add (`gpu`, `mpi`), and the order of it all (`horovod`).
"""

from tfdist.build import gpu as gpu
from tfdist.build import mpi as mpi
from tfdist.build.horovod import Outcome, install
from tfdist.build.recipe import Options

__all__ = ["Options", "Outcome", "install"]
