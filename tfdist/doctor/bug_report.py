"""An archive for a bug report: findings, versions, variables and log files, without secrets and personal names.

A variable is included by its prefix. Its value is replaced if its name sounds like a secret. In every file, passwords
in URLs, the home folder, the user's name and this machine's name are replaced.
"""

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tfdist.doctor.finding import Finding, as_report
from tfdist.errors import ConfigError
from tfdist.storage.files import explained
from tfdist.variables import PREFIX

#: bytes that are kept of a log file, from its end
KEPT_BYTES = 4 << 20

_PREFIXES = (
    *(PREFIX, "TF_", "KERAS_", "XLA_", "HOROVOD_", "NCCL_", "CUDA_", "NVIDIA_", "OMP_", "KMP_", "GRPC_"),
    *("SLURM_", "OMPI_", "PMI_", "PMIX_", "RAY_", "KUBERNETES_", "PYTHON", "LD_LIBRARY_PATH"),
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_WORD = r"(?:api[_-]?key|_key|token|secret|passw(?:or)?d|credential|authorization)"
# `name==1.2` is the version of a package such as asttokens. Each run of letters and hyphens is looked at once, from its
# beginning: a log may have a line of a million hyphens
_ASSIGNED = re.compile(
    rf"(?i)((?<![\w-])(?:(?=[\w-]*{_WORD})[\w-]*+[\"']?\s*(?:=(?!=\d)|:)\s*"
    rf"|(?=(?>[\w-]*?--)[\w-]*{_WORD})[\w-]*+\s+))"
    r"(?:bearer\s+|basic\s+)?(\(not shown\)|\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
)
# what some services give out says itself what it is
_KNOWN = re.compile(
    r"\b(?:(?:hf|gh[opsu]|github_pat|glpat|xox[abpr]|sk)[-_][\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16})\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^\s/@]+@")
_HIDDEN = "(not shown)"


def redactor(home: str, user: str, host: str) -> Callable[[str], str]:
    """Return a function that replaces the private parts of a text: secrets, and the names of the user and the machine.

    Example:
        >>> redactor("/home/ada", "ada", "host1")("s3://key:word@a/b in /home/ada/x on host1, api_key=12")
        's3://(not shown)@a/b in ~/x on HOST, api_key=(not shown)'
    """
    names = [(re.escape(home) + r"(?=/|\b)", "~")] if len(home) > 1 else []
    names += [(rf"\b{re.escape(word)}\b", shown) for word, shown in ((user, "USER"), (host, "HOST")) if len(word) > 2]

    def redacted(text: str) -> str:
        text = _KNOWN.sub(_HIDDEN, _PASSWORD_IN_URL.sub(f"{_HIDDEN}@", text))
        text = _ASSIGNED.sub(rf"\1{_HIDDEN}", text)
        for pattern, shown in names:
            text = re.sub(pattern, shown, text)
        return text

    return redacted


def variables(environ: Mapping[str, str]) -> str:
    """Return the variables that concern a training, one per line.

    Example:
        >>> variables({"TF_CPP_MIN_LOG_LEVEL": "2", "TFDIST_KEY": "abc", "MAIL": "ada@example.com"})
        'TFDIST_KEY=(not shown)\\nTF_CPP_MIN_LOG_LEVEL=2\\n'
    """
    names = sorted(name for name in environ if name.startswith(_PREFIXES))
    return "".join(f"{name}={_HIDDEN if _SECRET.search(name) else environ[name]}\n" for name in names)


def write(
    path: Path,
    findings: Sequence[Finding],
    *,
    packages: Mapping[str, str],
    environ: Mapping[str, str],
    logs: Iterable[Path],
    redacted: Callable[[str], str],
) -> list[str]:
    """Write the archive and return the names of its files; raise if the archive exists already."""
    contents = {
        "doctor.json": json.dumps(as_report(list(findings)), indent=2) + "\n",
        "packages.txt": "".join(f"{name}=={version}\n" for name, version in sorted(packages.items())),
        "variables.txt": variables(environ),
    }
    for number, log in enumerate(logs):
        contents[f"logs/{number}-{log.name}"] = _end_of(log)
    with explained(path, "written"):
        try:
            file = open(path, "xb")  # noqa: SIM115 - closed below
        except FileExistsError:
            raise ConfigError(f"{path} exists already; give another name.", path=path) from None
        try:
            with file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, text in contents.items():
                    archive.writestr(redacted(name), redacted(text))
        except BaseException:  # a part of an archive is in the way of the next one
            path.unlink(missing_ok=True)
            raise
    return [redacted(name) for name in contents]


def _end_of(log: Path) -> str:
    with explained(log, "read"), open(log, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - KEPT_BYTES))
        content = file.read()
    if b"\0" in content:
        raise ConfigError(f"{log} is not a text file; a bug report takes logs and event files.", path=log)
    cut = f"(the last {KEPT_BYTES} of {size} bytes)\n" if size > KEPT_BYTES else ""
    return cut + content.decode(errors="replace")
