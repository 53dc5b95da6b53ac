"""Ports for local workers.

Workers bind ports seconds after they were chosen, because TensorFlow loads first. In between, the kernel may assign
ports of its ephemeral range, so lower ports are preferred. A claim keeps out other jobs of tfdist: an abstract socket
named after the port, which ends with its process.

Example:
    >>> len(set(free_ports(3)))
    3
"""

import contextlib
import errno
import ipaddress
import os
import random
import socket
import sys
from collections import deque
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.validation import integer, text

_LOWEST = 10_000  # below are the well-known services
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS_PER_PORT = 50
_CLAIMS = 256  # of a process at a time, or as many as the last call returned; by then the first ones are bound
_claims: "deque[int]" = deque()  # descriptors


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ``count`` distinct TCP ports on which nothing listens at ``host``.

    The ports differ from each other, and on Linux from those that were given to other processes that still run.

    Args:
        count: the number of ports, at least 0.
        host: the name or address of an interface of this machine.
    Returns:
        The ports, in no particular order.
    Raises:
        ConfigError: ``host`` is no interface of this machine, or too few ports are free.

    Example:
        >>> free_ports(0)
        []
    """
    count = integer("count", count, minimum=0, maximum=10_000)
    family, address = _resolve(text("host", host))
    with contextlib.ExitStack() as held:
        found = [_hold_one(held, family, address, host) for _ in range(count)]
    while len(_claims) > max(_CLAIMS, count):  # never one of the ports that are returned
        os.close(_claims.popleft())
    return found


def loopback(host: str) -> bool:
    """Return whether a name or an address on this machine means the machine itself, for all of its users.

    Args:
        host: the name or the address.
    Raises:
        ConfigError: the name cannot be resolved here.

    Example:
        >>> loopback("127.0.0.1")
        True
    """
    return ipaddress.ip_address(_resolve(text("host", host))[1].partition("%")[0]).is_loopback


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"host is {host!r}, which does not resolve ({error}). Use 127.0.0.1.", name="host", received=host
        ) from error
    return family, str(address[0])


def _hold_one(held: contextlib.ExitStack, family: socket.AddressFamily, address: str, host: str) -> int:
    upper = _ephemeral_start() - 1
    preferred = (random.randint(_LOWEST, upper) for _ in range(_ATTEMPTS_PER_PORT)) if upper > _LOWEST else ()
    for port in (*preferred, 0):  # 0: whatever the kernel gives
        candidate = socket.socket(family, socket.SOCK_STREAM)
        try:
            candidate.bind((address, port))
        except OSError as error:
            candidate.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES) and port != 0:
                continue
            raise ConfigError(
                f"cannot bind a port at host {host!r}: {error}. It must be an interface of this machine with free "
                "ports; use 127.0.0.1, or end programs that hold ports.",
                name="host",
                received=host,
            ) from error
        held.enter_context(candidate)
        if port != 0 and not _claimed(port):
            continue
        return int(candidate.getsockname()[1])
    raise AssertionError("the loop ends by return or by raise")


def _claimed(port: int) -> bool:
    """Claim a port; return True if no other process has claimed it."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        try:
            mark.bind(f"\0tfdist-port-{port}")
        except OSError:
            return False
        _claims.append(mark.detach())
    return True


def _ephemeral_start() -> int:
    """Return the first port of the kernel's ephemeral range, or its usual value."""
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
