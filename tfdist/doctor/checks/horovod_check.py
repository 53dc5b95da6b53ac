"""Horovod: whether it is installed, for which TensorFlow it was built, whether it loads, and what is built in.

Example:
    >>> judge(Framework(), None, tensorflow="2.21.0")[0].cure
    'tfdist build horovod'
"""

from tfdist.doctor.finding import Finding, note, ok, warning
from tfdist.doctor.framework import Framework
from tfdist.native.horovod_record import Installed

_BUILD = "tfdist build horovod"


def judge(framework: Framework, found: Installed | None, *, tensorflow: str) -> list[Finding]:
    """Say whether Horovod can be used, and with which transports."""
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
