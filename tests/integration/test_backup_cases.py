"""Uses of `BackupAndRestore`: arguments, Ctrl-C, damage, other callbacks, and state of each replica."""

from pathlib import Path

import pytest

from tests.integration.forks import Forks

CASES = str(Path(__file__).parent / "cases" / "backup_cases.py")
INPUTS = str(Path(__file__).parent / "cases" / "backup_inputs.py")
REPLICA_CASES = str(Path(__file__).parent / "cases" / "replica_cases.py")


@pytest.mark.parametrize(
    "case",
    [
        "arguments",
        "interrupted_in_a_notebook",
        "kept_and_gone_on_with",
        "another_model",
        "other_metrics",
        "interrupted_while_saving",
        "of_something_else",
        "of_an_earlier_version",
        "damaged",
        "of_two_jobs",
        "full_disk",
        "ended_by_sigterm",
        "early_stopping",
        "own_train_step",
        "mixed_precision",
        "distributed_optimizer",
        "another_batch",
        "several_steps_per_execution",
        "another_steps_per_execution",
        "in_an_evaluation",
        "in_an_object_store",
        "what_other_callbacks_know",
        "halted_twice_in_one_validation",
    ],
)
def test_what_users_do_with_it(forking: Forks, tmp_path: Path, case: str) -> None:
    assert forking.run(CASES, case, str(tmp_path)) == 0, forking.output[-3000:]


@pytest.mark.parametrize("case", ["accumulating_replicas", "another_number_of_replicas"])
def test_what_every_replica_has_by_itself(forking: Forks, tmp_path: Path, case: str) -> None:
    assert forking.run(REPLICA_CASES, case, str(tmp_path)) == 0, forking.output[-3000:]


@pytest.mark.parametrize(
    "case", ["training", "validation", "shown", "ends_within_an_epoch", "another_fit", "another_batch"]
)
def test_an_input_with_a_state_goes_on_as_it_was(forking: Forks, tmp_path: Path, case: str) -> None:
    assert forking.run(INPUTS, case, str(tmp_path)) == 0, forking.output[-3000:]
