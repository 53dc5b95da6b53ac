"""The command's words: help, and requests that make no sense; nothing runs here."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdist.bench.all_reduce.benchmark import ENGINES
from tfdist.bench.parameter_server.stragglers import MODES
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


def test_help_of_parameter_server_names_the_modes_and_what_is_not_measured() -> None:
    done = CliRunner().invoke(main, ["bench", "parameter-server", "--help"])
    assert done.exit_code == 0
    told = " ".join(done.output.split())
    for word in (*MODES, "max_staleness=0", "max_staleness=workers + 1", "is not measured here", "stopped and let go"):
        assert word in told


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
        (["step", "--strategy", "parameter-server"], "--strategy"),
        (["step", "--warm-up-steps", "0"], "--warm-up-steps"),
        (["step", "--json", "none/report.json"], "there is no folder 'none'"),
        (["step", "--json", "."], "is a directory"),
        (["all-reduce", "--plot", "none/all-reduce.png"], "there is no folder 'none'"),
        (["recovery", "--json", "/dev/null/report.json"], "there is no folder '/dev/null'"),
        (["parameter-server", "--workers", "1,two"], "--workers is 'two'"),
        (["parameter-server", "--workers", "2,2"], "each once"),
        (["parameter-server", "--slow-factor", "0.5"], "--slow-factor"),
        (["parameter-server", "--rows", "1"], "--rows"),
        (["sharded", "--workers", "1"], "--workers"),
        (["model-parallel", "--width", "15", "--heads", "5"], "heads is 5"),
        (["model-parallel", "--width", "6"], "width is 6 for 4 heads"),
        (["pipeline", "--blocks", "3"], "blocks is 3; two stages share them"),
        (["pipeline", "--batch-size", "12"], "batch_size is 12 for 8 micro-batches"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert not list(Path.cwd().iterdir())
