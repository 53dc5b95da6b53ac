"""Tests of options as fields of a dataclass: they are checked, and a command has them by the same names."""

from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tfdist.cli.common.option_parts import field_options
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.jobs import LaunchConfig
from tfdist.options import check, flags_of, option, options_of


@dataclass(frozen=True, kw_only=True)
class Trip:
    """Options of every kind."""

    days: int = option(3, "How long.", flags=("-d", "--days"), minimum=1, maximum=9)
    speed: float | None = option(None, "How fast.", kind=float, above=0)
    by: str = option("train", "With what.", choices=("train", "bike"), variable="TRIP_BY")
    stops: tuple[str, ...] = option((), "Where, several.", flags=("--stop",))
    night: bool = option(False, "Whether at night.")
    secret: int = option(7)
    note: str = ""

    def __post_init__(self) -> None:
        check(self)


@click.command()
@field_options(Trip)
def command(**given: object) -> None:
    click.echo(repr(Trip(**{name: value for name, value in given.items() if value is not None})))


@pytest.mark.parametrize(
    ("wrong", "kind", "name"),
    [
        ({"days": 0}, ConfigError, "days (-d)"),
        ({"days": 10}, ConfigError, "days (-d)"),
        ({"days": True}, ConfigTypeError, "days (-d)"),
        ({"speed": 0.0}, ConfigError, "speed (--speed)"),
        ({"speed": "fast"}, ConfigTypeError, "speed (--speed)"),
        ({"by": "boat"}, ConfigError, "by (--by)"),
        ({"stops": ("a", 3)}, ConfigTypeError, "stops"),
        ({"night": 1}, ConfigTypeError, "night"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(wrong: dict, kind: type, name: str) -> None:
    with refused(kind, name=name):
        Trip(**wrong)


def test_a_command_has_the_fields_as_options() -> None:
    words = ["-d", "5", "--speed", "2.5", "--by", "bike", "--stop", "a", "--stop", "b", "--night", "--secret", "1"]
    done = CliRunner().invoke(command, words)
    assert done.output.strip() == repr(Trip(days=5, speed=2.5, by="bike", stops=("a", "b"), night=True, secret=1)), (
        done.output
    )
    assert CliRunner().invoke(command, []).output.strip() == repr(Trip())
    assert "by='bike'" in CliRunner().invoke(command, [], env={"TRIP_BY": "bike"}).output


def test_help_leaves_out_what_has_none() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert [
        flag for flag in ("-d, --days", "--speed", "--by", "--stop", "--night", "--secret") if flag not in text
    ] == ["--secret"]
    assert "[default: 3]" in text


def test_every_option_of_a_job_can_be_given_to_run() -> None:
    from tfdist.cli.run_command import command as run

    taken = {parameter.name: parameter.opts for parameter in run.params}
    for field, known in options_of(LaunchConfig):
        assert tuple(taken[field.name]) == flags_of(field.name, known)


def test_a_file_of_a_job_may_be_a_path() -> None:
    config = LaunchConfig(target="train.py", event_file=Path("events"), trace=Path("trace"), monitor=True)
    assert (config.event_file, config.trace) == (Path("events"), Path("trace"))


def test_bounds_that_depend_on_the_number_of_workers_are_said_together() -> None:
    with refused(ConfigError, name="min_workers (--min-workers)", received="0", mentions=("from 1 to 2",)):
        LaunchConfig(target="train.py", workers=2, min_workers=0)
