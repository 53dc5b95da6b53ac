"""The `tfdist run` command of a trial, and the slots of a launcher that it takes: pure functions.

A trial with one process on this machine is not a job: it is forked. Every other trial is a job of a launcher, which
    starts and ends it like any other job. If the hosts are known, a slot is a set of places on them; else trials wait
    in the launcher's queue.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.errors import ConfigError
from tfdist.jobs.launchers.launcher_table import LAUNCHERS
from tfdist.jobs.plan.host_plan import Host, parse_hosts
from tfdist.jobs.plan.worker_spec import VISIBLE, gpus_of
from tfdist.tune.search.search_settings import SearchSettings

_OWN = ("-n", "--workers", "--strategy", "-m", "--hosts", "--engine", "--gpus-per-worker")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A slot for a trial: options of `tfdist run`, and environment variables."""

    words: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None


def launcher_of(settings: SearchSettings) -> str:
    return settings.launcher_name or ("local" if settings.hosts is None else "ssh")


def is_forked(settings: SearchSettings) -> bool:
    """Return whether a trial is one process on this machine, which needs no `tfdist run`."""
    is_plain = settings.workers_per_trial == 1 and settings.strategy is None
    has_options = settings.run_options is not None or settings.gpus_per_worker is not None
    return is_plain and not has_options and launcher_of(settings) == "local"


def slots_of(settings: SearchSettings, count: int | None, environ: Mapping[str, str], cores: int) -> tuple[Slot, ...]:
    """Return the slots of a search: the given number, or as many as there are places for.

    Example:
        >>> settings = SearchSettings(target="train.py", hosts="a:2,b:2", workers_per_trial=2)
        >>> [one.words for one in slots_of(settings, None, {}, 1)]
        [('--engine', 'ssh', '--hosts', 'a=a:2'), ('--engine', 'ssh', '--hosts', 'b=b:2')]
    """
    _require_options(settings)
    launcher = LAUNCHERS[launcher_of(settings)]
    workers, engine = settings.workers_per_trial, ("--engine", launcher.name)
    if launcher.by_hand:
        raise ConfigError(
            f"--engine is {launcher.name}, whose agents a user starts by hand for each job, and a search starts many "
            "jobs. Name the hosts for ssh (--hosts a:4,b:4), or use slurm, ray or kubernetes.",
            name="--engine",
            received=launcher.name,
        )
    if launcher.without_hosts and settings.hosts is not None:
        raise ConfigError(
            f"--engine {launcher.name} {launcher.without_hosts}, and --hosts {settings.hosts} names others. Leave one "
            "of the two out.",
            name="--hosts",
            received=settings.hosts,
        )
    if launcher.name == "local":
        places = len(gpus_of(environ)) or cores
        return (Slot(),) * (count or max(1, places // workers))
    hosts = parse_hosts(settings.hosts) if settings.hosts is not None else launcher.hosts(environ)
    if not hosts:
        return (Slot(words=engine),) * _asked(count, launcher.name)
    places_of_all = [(host, place) for host in hosts for place in range(host.slots)]
    most = len(places_of_all) // workers
    if not most or (count or 0) > most:
        raise ConfigError(
            f"{count or 1} trials of {workers} workers are to run at the same time, and the hosts have "
            f"{len(places_of_all)} places. Name more of them (--hosts a:4,b:4), or ask for fewer --slots or "
            "--workers-per-trial.",
            name="--slots",
            received=count,
        )
    found = [places_of_all[first * workers : (first + 1) * workers] for first in range(count or most)]
    if settings.gpus_per_worker and VISIBLE in launcher.of_each_host and len(found) > 1:
        _require_whole_hosts(found, launcher.name)
    return tuple(_slot(settings, engine, places) for places in found)


def command_of(settings: SearchSettings, slot: Slot) -> tuple[str, ...]:
    """Return the words after `tfdist` that run a trial on a slot."""
    gpus = settings.gpus_per_worker
    return (
        *("run", "-n", str(settings.workers_per_trial), *slot.words),
        *(() if settings.strategy is None else ("--strategy", settings.strategy)),
        *(() if gpus is None else ("--gpus-per-worker", str(gpus))),
        *shlex.split(settings.run_options or ""),
        *(("-m",) if settings.is_module else ()),
        *(settings.target, *settings.arguments),
    )


def _asked(count: int | None, launcher: str) -> int:
    if count is None:
        raise ConfigError(
            f"--engine is {launcher}, which has a queue, and no hosts are known: how many trials may be in it is for "
            "you to say. Give --slots 8.",
            name="--slots",
            received=None,
        )
    return count


def _slot(settings: SearchSettings, engine: tuple[str, ...], places: list[tuple[Host, int]]) -> Slot:
    """Return a slot on these places; on hosts with GPUs, each place has GPUs of its own."""
    first: dict[str, tuple[Host, int, int]] = {}
    for host, place in places:
        _, begin, count = first.get(host.name, (host, place, 0))
        first[host.name] = host, begin, count + 1
    words = ",".join(f"{host.name}={host.address}:{count}" for host, _, count in first.values())
    gpus = settings.gpus_per_worker
    if not gpus:
        return Slot(words=(*engine, "--hosts", words))
    if len({begin for _, begin, _ in first.values()}) > 1:
        raise ConfigError(
            f"the {settings.workers_per_trial} workers of a trial would have other GPUs on each of the hosts {words}. "
            "Give every host a multiple of --workers-per-trial as places, or the other way round.",
            name="--hosts",
            received=settings.hosts,
        )
    _, begin, count = next(iter(first.values()))
    visible = ",".join(str(one) for one in range(begin * gpus, (begin + max(c for _, _, c in first.values())) * gpus))
    return Slot(words=(*engine, "--hosts", words), variables={VISIBLE: visible})


def _require_whole_hosts(slots: list[list[tuple[Host, int]]], launcher: str) -> None:
    """Refuse several trials on a host whose launcher assigns the GPUs: all trials would see the same ones."""
    hosts = [name for places in slots for name in {host.name for host, _ in places}]
    if len(set(hosts)) < len(hosts):
        raise ConfigError(
            f"several trials with GPUs would share a host of {launcher}, which says itself which GPUs its processes "
            "see. Give a trial whole hosts: --workers-per-trial as many as a host has places.",
            name="--workers-per-trial",
        )


def _require_options(settings: SearchSettings) -> None:
    given = [word.partition("=")[0] for word in shlex.split(settings.run_options or "")]
    if own := [word for word in given if word in _OWN]:
        raise ConfigError(
            f"--run-options has {own[0]}, which the search gives each trial itself. Give {own[0]} to tfdist search "
            "(-n as --workers-per-trial).",
            name="--run-options",
            received=settings.run_options,
        )
