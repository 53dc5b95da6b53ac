"""The translation of `tfdist run --engine kubernetes`, which prints or submits a job."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tfdist.cli.common.command import without_options
from tfdist.cli.common.host_options import HostOptions, most_processes, say, words_of
from tfdist.cluster import job_key
from tfdist.errors import ConfigError
from tfdist.jobs import LaunchConfig, require_script
from tfdist.jobs.connecting.serialization import passed_on
from tfdist.jobs.launchers.kubernetes import following, manifests
from tfdist.jobs.launchers.kubernetes.kubernetes_api import Cluster
from tfdist.jobs.launchers.kubernetes.kubernetes_launcher import KubernetesLauncher
from tfdist.jobs.launchers.kubernetes.pod_outputs import Output
from tfdist.jobs.launchers.kubernetes.pods import SCRIPT_FOLDER, Request, job_name, load, quantities
from tfdist.jobs.launchers.launcher import Launcher
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.variables import JOB_KEY, POD_PREFIX, PREFIX

_OF_KUBERNETES = ("image", "namespace", "kind", "name", "topology", "pod")

# options of the submission alone, which the command of a pod does not have
_WITH_VALUES = (
    *(f"--{name}" for name in _OF_KUBERNETES),
    *("--pass-env", "--remote-python"),
    *("--gpus-per-worker", "--cpus-per-worker", "--memory-per-worker"),
)
_WRITES = ("--event-file", "--trace", "--export")  # the command of a pod has them with other paths


def check_options(asked: HostOptions, launcher: Launcher) -> None:
    given = [f"--{name}" for name in _OF_KUBERNETES if getattr(asked, name) is not None]
    if given and not isinstance(launcher, KubernetesLauncher):
        raise click.UsageError(f"{given[0]} is for --engine kubernetes. Name it, or leave the option out.")


def request_of(context: click.Context, config: LaunchConfig, asked: HostOptions) -> Request:
    passed = asked.pass_env
    processes = most_processes(config)
    if not asked.image:
        raise click.UsageError("--engine kubernetes needs an image with tfdist: --image registry/tfdist:cpu")
    missing = [name for name in passed if name not in os.environ]
    if missing:
        raise click.UsageError(f"--pass-env names {missing[0]}, which is not set here.")
    target, script = _script(config)
    name = asked.name or job_name(Path(config.target).stem)
    hosts = tuple(Host(name=f"{name}-{index}", address=f"{name}-{index}") for index in range(processes))
    replace(config, remote=Remote(hosts=hosts, launcher="kubernetes"))  # refuses options that other hosts lack
    options, (_, *arguments) = words_of(context, config)
    written, outputs = _outputs(config, passed)
    kept = without_options(options, (*_WITH_VALUES, *_WRITES))
    # `kept` comes last, because it may end with -m
    words = (asked.remote_python or "python", "-m", "tfdist", "run", *written, *kept, target)
    return Request(
        name=name,
        image=asked.image,
        pods=processes,
        arguments=(*words, *arguments),
        kind=asked.kind or "job",
        namespace=asked.namespace or "default",
        secret=tuple(sorted(_variables(passed))),
        script=script,
        resources=quantities(**asked.of_worker),
        grace_seconds=config.grace_seconds,
        restarts=config.max_restarts,
        topology=asked.topology,
        patch=_patch(asked.pod),
        outputs=outputs,
    )


def submit(context: click.Context, config: LaunchConfig, asked: HostOptions) -> int:
    """Print the manifests, or submit them and follow the job to its end; return the exit code."""
    asked.require_no_sbatch()
    request = request_of(context, config, asked)
    if asked.dry_run:
        print_manifests(request)
        return 0
    cluster = Cluster(asked.namespace)
    request = replace(request, namespace=cluster.namespace)
    values = {JOB_KEY.name: job_key.drawn(), **{name: os.environ[name] for name in request.secret}}
    return following.submit(cluster, request, manifests.objects(request), values, say=say)


def print_manifests(request: Request) -> None:
    runtime = [manifests.runtime()] if request.kind == "trainjob" else []
    click.echo(manifests.how_to_make_the_secret(request))
    for number, output in enumerate(request.outputs):
        click.echo(
            f"# {output.place} comes through the log of the first pod, which writes {output.in_pod(number)}; by hand "
            "put the path of a volume in its place."
        )
    click.echo(manifests.as_text([*runtime, *manifests.objects(request)]), nl=False)


def _outputs(config: LaunchConfig, passed: Sequence[str]) -> tuple[list[str], tuple[Output, ...]]:
    """Return the options for files that the first pod writes, and the paths of these files here."""
    from tfdist.monitor.exporters.exporter import KINDS, parse_all  # imported late, because few jobs need it

    words: list[str] = []
    outputs: list[Output] = []

    def bring(option: str, output: Output, *, before: str = "") -> None:
        words.extend((option, before + output.in_pod(len(outputs))))
        outputs.append(output)

    if config.event_file is not None:
        bring("--event-file", Output(place=Path(config.event_file), grows=True))
    if config.trace is not None:
        bring("--trace", Output(place=Path(config.trace)))
    for target in parse_all(config.exporters, option="--export"):
        if default := KINDS[target.name].default:
            is_folder = target.name == "tensorboard"
            output = Output(place=Path(target.where or default), grows=is_folder, is_folder=is_folder)
            bring("--export", output, before=f"{target.name}:")
            continue
        if target.name == "mlflow" and "://" not in (target.where or _given("MLFLOW_TRACKING_URI", passed)):
            raise ConfigError(
                f"--export is {target}, which would be a folder of the first pod, and go with it. Name a server: "
                "--export mlflow:http://HOST:PORT, or MLFLOW_TRACKING_URI with --pass-env MLFLOW_TRACKING_URI."
            )
        words.extend(("--export", str(target)))
    return words, tuple(outputs)


def _given(name: str, passed: Sequence[str]) -> str:
    return os.environ.get(name, "") if name in passed else ""


def _script(config: LaunchConfig) -> tuple[str, tuple[str, str] | None]:
    """Return the command of a pod, and the script to send; a path that does not exist here is in the image."""
    path = Path(config.target)
    if config.is_module or (path.is_absolute() and not path.exists()):
        return config.target, None
    require_script(config)
    try:
        return f"{SCRIPT_FOLDER}/script.py", ("script.py", path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"script is {config.target}, which is not UTF-8 text ({error}).") from error


def _variables(passed: Sequence[str]) -> dict[str, str]:
    """Return the variables for pods: the named ones, and the variables of tfdist that apply to all hosts."""
    own = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) or name in passed}
    kept = passed_on(own, tuple(passed))
    return {name: value for name, value in kept.items() if not name.startswith(POD_PREFIX)}


def _patch(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    yaml = load("yaml")
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--pod {path} cannot be read as YAML: {error}") from error
    if not isinstance(found, dict) or not set(found) <= {"metadata", "spec"}:
        raise ConfigError(
            f"--pod {path} must be a part of a pod's template: metadata, and spec with nodeSelector, volumes, "
            "containers (of the name node) and so on."
        )
    return found
