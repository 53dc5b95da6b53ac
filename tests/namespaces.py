"""Network namespaces, by `ip` of iproute2."""

import subprocess
from pathlib import Path

ETC = Path("/etc/netns")  # of which `ip netns exec` lays the files of a namespace over those in /etc


def ip(*arguments: str, seconds: float = 200.0) -> None:
    """Run `ip`.

    Args:
        arguments: of it.
        seconds: how long it may take.
    Raises:
        OSError: it fails.
    """
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
