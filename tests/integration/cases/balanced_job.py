"""A job of two workers: measured shares, and then shares that move while worker 1 is killed. balanced_job.py FOLDER"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import balance_cases as cases
import keras
import numpy as np

from tfdist.callbacks import BackupAndRestore, BalanceShares

FOLDER, START = Path(sys.argv[1]), int(os.environ["TFDIST_RESTARTS"])
KILLED_AFTER = 11  # steps: shares have changed by then, and a further change is decided on, which does not hold yet

really_measured = BalanceShares._measured


def told(self: BalanceShares) -> tuple[float, float]:
    """Return the times of a worker 1 that takes four times as long for a row, in place of a clock's."""
    assert really_measured(self)[0] > 0, "the stamps of the steps are there"
    assert self._rows is not None
    return self._rows[cases.RANK] * (1e-3, 4e-3)[cases.RANK], 0.0


class Notes(keras.callbacks.Callback):
    """Notes with which shares each step begins; one worker ends in the middle of an epoch."""

    def __init__(self, balance: BalanceShares) -> None:
        super().__init__()
        self.balance = balance
        self.seen: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append([int(self.model.optimizer.iterations.numpy()), list(cases.STRATEGY.shares), self.pending()])
        (FOLDER / f"notes {START} {cases.RANK}.json").write_text(json.dumps(self.seen))

    def pending(self) -> Any:
        """Return the state that a backup keeps of a change that does not hold yet."""
        state = self.balance.get_state()
        return [state.get("former"), state.get("changes_at")]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (START, cases.RANK) == (0, 1) and int(self.model.optimizer.iterations.numpy()) == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    BalanceShares._measured = told  # type: ignore[method-assign]
    assert cases.STRATEGY.measures_shares
    data = cases.data("arrays", FOLDER)
    if START == 0:
        network = cases.model(cases.STRATEGY.scope())
        network.fit(**data, epochs=8, verbose=0)
        (FOLDER / f"measured {cases.RANK}.json").write_text(json.dumps(cases.STRATEGY.shares))
    cases.STRATEGY.measures_shares, cases.STRATEGY.shares = False, (1, 1)
    network = cases.model(cases.STRATEGY.scope())
    backup = BackupAndRestore(FOLDER / "backup", save_freq=1, asynchronous=False)
    balance = BalanceShares(every=4)
    network.fit(**data, epochs=cases.EPOCHS, verbose=0, callbacks=[balance, backup, Notes(balance)])
    if cases.RANK == 0:
        alone = cases.model(contextlib.nullcontext())
        alone.fit(**data, epochs=cases.EPOCHS, verbose=0)
        pairs = zip(network.get_weights(), alone.get_weights(), strict=True)
        gap = max(float(np.abs(mine - other).max()) for mine, other in pairs)
        told_at_end = {"gap": gap, "steps": int(network.optimizer.iterations.numpy()), "shares": cases.STRATEGY.shares}
        (FOLDER / "end.json").write_text(json.dumps(told_at_end))


if __name__ == "__main__":
    main()
