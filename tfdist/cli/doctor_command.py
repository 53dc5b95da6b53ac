"""``tfdist doctor``: print the findings as a table or as JSON, or pack them for a bug report."""

import getpass
import json
import os
import platform
import textwrap
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from tfdist import doctor
from tfdist.cli.common.command import Command
from tfdist.doctor import Finding, Level, bug_report
from tfdist.doctor.software_check import installed_packages
from tfdist.errors import ConfigError

_STYLE = {Level.OK: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
_WIDTH_OF_CHECK = 14


@click.command(
    "doctor",
    cls=Command,
    examples={
        "tfdist doctor": "a line for each check",
        "tfdist doctor --json": "the same for programs",
        "tfdist doctor --timeout-seconds 300": "where TensorFlow loads slowly",
        "tfdist doctor --bug-report report.zip --log job.log": "an archive to attach to a bug report",
    },
    epilog="Exit code: 0 when there is no problem, 1 when there is one.",
    page="doctor",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (tfdist docs doctor).")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=1),
    default=120.0,
    help="Deadline for loading TensorFlow in a child process, and for nvidia-smi.",
)
@click.option(
    "--bug-report",
    "report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a zip archive with the findings, the versions of all packages and the variables, without secrets.",
)
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    multiple=True,
    help="A log or event file that the archive includes; may be repeated.",
)
def command(as_json: bool, timeout_seconds: float, report: Path | None, logs: tuple[Path, ...]) -> None:
    """Say what this machine has, what works, what is missing, and the command that cures it.

    Levels: ok; note (worth knowing); warning (works slowly, partly or not always); problem (training fails or hangs).
    """
    if logs and report is None:
        raise ConfigError("--log is for the archive of --bug-report FILE, which was not given.", name="--log")
    findings = doctor.examine(doctor.standard_checks(timeout_seconds=timeout_seconds))
    if as_json:
        click.echo(json.dumps(doctor.as_report(findings), indent=2))
    else:
        _show(findings, Console(highlight=False))
    if report is not None:
        _pack(report, findings, logs)
    if doctor.worst(findings) is Level.PROBLEM:
        raise SystemExit(1)


def _pack(path: Path, findings: list[Finding], logs: tuple[Path, ...]) -> None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run with a number that no user has
        user = ""
    names = bug_report.write(
        path,
        findings,
        packages=installed_packages(),
        environ=os.environ,
        logs=logs,
        redacted=bug_report.redactor(os.path.expanduser("~"), "" if user == "root" else user, platform.node()),
    )
    click.echo(f"{path}: {', '.join(names)}. Read it before you send it", err=True)


def _counted(number: int, level: Level) -> str:
    """Return such as "2 warnings"; "ok" has no plural."""
    return f"{number} {level.name.lower()}{'' if number == 1 or level is Level.OK else 's'}"


def _show(findings: list[Finding], console: Console) -> None:
    indent = max(len(level.name) for level in Level) + _WIDTH_OF_CHECK + 2
    for finding in findings:
        style = _STYLE[finding.level]
        head = Text.assemble((f"{finding.level.name.lower():<7} ", style), f"{finding.check:<{_WIDTH_OF_CHECK}} ")
        console.print(Text.assemble(head, finding.seen), soft_wrap=True)
        for line in textwrap.wrap(finding.why, width=max(40, console.width - indent)):
            console.print(Text(" " * indent + line, style="dim"), soft_wrap=True)
        if finding.cure:
            console.print(Text(" " * indent + f"$ {finding.cure}", style="cyan"), soft_wrap=True)
    count = {level: sum(finding.level is level for finding in findings) for level in Level}
    console.print(", ".join(_counted(count[level], level) for level in reversed(Level)), style="bold")
