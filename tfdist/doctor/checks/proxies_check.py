"""Proxies: a proxy variable sends gRPC between workers, even on 127.0.0.1, to a proxy that cannot serve it.

What gRPC's core reads, tried with TensorFlow 2.21: ``grpc_proxy``, ``https_proxy`` and ``http_proxy``, in lower case
only; exceptions are ``no_grpc_proxy``, else ``no_proxy``, as ends of host names and as networks (``10.0.0.0/8``); ``*``
excepts nothing. A session between two servers then waits beyond its own deadline.

Example:
    >>> judge({"http_proxy": "http://proxy:3128"}, ["127.0.0.1"])[0].level.name
    'PROBLEM'
"""

import ipaddress
from collections.abc import Mapping, Sequence

from tfdist.doctor.finding import Finding, ok, problem

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def judge(environ: Mapping[str, str], hosts: Sequence[str]) -> list[Finding]:
    """Say whether the addresses of workers go around the proxy."""
    proxy = next((name for name in _PROXIES if environ.get(name)), None)
    if proxy is None:
        return [ok("proxies", "gRPC uses none")]
    name = next((name for name in _EXCEPTIONS if environ.get(name)), "no_proxy")
    exceptions = environ.get(name, "")
    caught = [host for host in dict.fromkeys(hosts) if not excepted(host, exceptions)]
    if not caught:
        return [ok("proxies", f"{proxy} is set, {name} excepts {', '.join(dict.fromkeys(hosts))}")]
    seen = f"{proxy}={environ[proxy]}, and {name}={exceptions!r} does not except {', '.join(caught)}"
    why = "gRPC between workers goes to the proxy, and training waits without an end"
    return [problem("proxies", seen, why, f"export {name}={','.join(filter(None, [exceptions, *caught]))}")]


def excepted(host: str, exceptions: str) -> bool:
    """Return whether gRPC goes around the proxy for ``host``, given the text of ``no_proxy``.

    Example:
        >>> excepted("10.1.2.3", "localhost, 10.0.0.0/8")
        True
    """
    return any(_matches(host, entry.strip()) for entry in exceptions.split(",") if entry.strip())


def _matches(host: str, entry: str) -> bool:
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    return host.lower().endswith(entry.lower())
