"""The command's words: help, and requests that make no sense; nothing runs here."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdist.bench.all_reduce import ENGINES
from tfdist.cli.main import main


def test_help_names_every_engine_and_the_conventions() -> None:
    done = CliRunner().invoke(main, ["bench", "all-reduce", "--help"])
    assert done.exit_code == 0
    for word in (*ENGINES, "algbw", "busbw", "2 (n - 1) / n", "#wrong", "--plot", "--gradients"):
        assert word in done.output


def test_help_of_step_says_what_a_total_is() -> None:
    done = CliRunner().invoke(main, ["bench", "step", "--help"])
    assert done.exit_code == 0
    for word in ("DistributedGradientTape", "1.96 standard deviations", "slowest worker", "resnet50"):
        assert word in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["all-reduce", "--engine", "gloo"], "--engine"),
        (["all-reduce", "--workers", "1"], "--workers"),
        (["all-reduce", "--min-bytes", "4X"], "a size is '4X'"),
        (["all-reduce", "--min-bytes", "1M", "--max-bytes", "4K"], "the smallest size is"),
        (["all-reduce", "--factor", "1"], "--factor"),
        (["all-reduce", "--gradients", "vgg"], "--gradients"),
        (["step", "--strategy", "horovod"], "--strategy"),
        (["step", "--strategy", "ring", "--batch-size", "7"], "7 examples for 2 replicas"),
        (["step", "--warm-up-steps", "0"], "--warm-up-steps"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert not list(Path.cwd().iterdir())
