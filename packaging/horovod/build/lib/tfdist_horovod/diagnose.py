"""The cause of a failed build in one line, out of a log of thousands.

Example:
    >>> find_cause("x.cc:3:10: fatal error: nccl.h: No such file or directory").line
    'x.cc:3: nccl.h: No such file or directory'
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST = 300


@dataclass(frozen=True)
class Cause:
    """The cause of a failed build, and its cure.

    Attributes:
        line: the cause.
        cure: what to do about it; empty where only the log can tell.
    """

    line: str
    cure: str = ""


@dataclass(frozen=True)
class _Sign:
    pattern: str
    line: str  # a template of re.Match.expand
    cure: str = ""


_NETWORK = "check the network and the proxy, or name another index: export PIP_INDEX_URL=https://..."

# In the order of how much they tell: what the first finds is the cause, wherever in the log it stands.
_SIGNS: Sequence[_Sign] = (
    _Sign(
        r"(No space left on device|Disk quota exceeded)",
        r"\1",
        "free some space (the build takes about 1 GB), or name another folder: export TFDIST_CACHE_DIR=/path",
    ),
    _Sign(
        r"(?:Killed signal terminated|fatal error: Killed|virtual memory exhausted|Cannot allocate memory)",
        "memory ran out while compiling",
        "compile one file at a time: tfdist build horovod --jobs 1",
    ),
    _Sign(
        r"THESE PACKAGES DO NOT MATCH THE HASHES",
        "the source archive is not the one that is expected (its SHA-256 differs)",
        "the index or a proxy serves another file; use the registry itself: export PIP_INDEX_URL=https://pypi.org/simple",
    ),
    _Sign(
        r"(?:Failed to establish a new connection|Temporary failure in name resolution|Name or service not known"
        r"|Connection refused|Max retries exceeded|ConnectTimeoutError|Read timed out|ProxyError|SSLError)[^\n]*",
        "the package index cannot be reached",
        _NETWORK,
    ),
    _Sign(r"ERROR: No matching distribution found for ([^\n]+)", r"the package index has no \1", _NETWORK),
    _Sign(
        r"(?i:error): externally-managed-environment", "this Python belongs to the system", "use a virtual environment"
    ),
    _Sign(r"^\s*(\S[^\n]*?):(\d+)(?::\d+)?: (?:fatal )?error: ([^\n]+)", r"\1:\2: \3"),
    _Sign(r"(The C(?:XX|\+\+)? compiler)\s+(\"[^\"]+\")\s+(is not able to compile a simple test program)", r"\1 \2 \3"),
    _Sign(r"^(nvcc fatal\s+: [^\n]+)", r"\1"),
    _Sign(r"^(ptxas fatal\s+: [^\n]+)", r"\1"),
    _Sign(r"([^\n]*undefined reference to [^\n]+)", r"\1"),
    _Sign(r"^[^\n]*?(?:ld|ld\.\w+): ([^\n]*cannot find [^\n]+)", r"the linker: \1"),
    _Sign(r"CMake Error at [^\n]+\n\s*([^\n]+)", r"CMake: \1"),
    _Sign(r"CMake Error: ([^\n]+)", r"CMake: \1"),
    _Sign(r"(?:c\+\+|g\+\+|cc1plus|clang): (?:fatal )?error: ([^\n]+)", r"the compiler: \1"),
    _Sign(r"^ERROR: ([^\n]+)", r"pip: \1"),
    _Sign(r"^(?:\w+\.)*(\w*(?:Error|Exception): [^\n]+)", r"\1"),
    _Sign(r"^make(?:\[\d+\])?: \*\*\* ([^\n]+)", r"make: \1"),
)


def find_cause(log: str) -> Cause:
    """Return the first cause that a log of pip, CMake, the compiler or Python tells of."""
    log = "\n".join(line for line in log.splitlines() if not line.startswith("$ "))
    for sign in _SIGNS:
        found = re.search(sign.pattern, log, re.MULTILINE)
        if found:
            return Cause(_short(found.expand(sign.line)), sign.cure)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return Cause(_short(lines[-1]) if lines else "it ended without a word")


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
