"""The files of a run: a checkpoint of each round, and a journal of the events since then.

checkpoints/        weights, the algorithm's state and the state machine, after the last rounds
journal-N.jsonl     the events since N rounds were done, each written before it has an effect
updates/            the updates of the journal
rounds.jsonl        a line for each round that is done
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.checkpoint import Checkpoint, Store
from tfdist.errors import CorruptDataError
from tfdist.federated.algorithms.algorithm import ServerState
from tfdist.federated.client_update import Arrays
from tfdist.federated.clients import array_files
from tfdist.federated.round_history import ROUNDS, RoundRecord, read_rounds
from tfdist.federated.rounds.round_messages import Event, Trained, from_json, to_json
from tfdist.storage.directory import storage

RUN_FILE = "run_id"
_WEIGHT, _SLOT = "weight:", "slot:"


def run_id(folder: Path) -> str:
    """Return a name that no other run has; it is kept, so that a resumed run has the same name."""
    place = storage(folder)
    if RUN_FILE not in place.names():
        with place.create(RUN_FILE) as file:
            file.write(secrets.token_hex(16).encode())
    return place.read(RUN_FILE).decode()


class SessionFiles:
    """The folder of one run."""

    def __init__(self, folder: Path, *, journals: bool) -> None:
        self._folder, self._place = folder, storage(folder)
        self._journals = journals
        self._store = Store(folder / "checkpoints", keep=2)
        self._step = 0

    def newest(self) -> Checkpoint | None:
        return self._store.newest()

    def save(self, step: int, state: ServerState, plain: Mapping[str, Any]) -> None:
        """Save the state after this number of rounds; the journal begins anew."""
        arrays = {_WEIGHT + name: array for name, array in state.weights.items()}
        arrays |= {_SLOT + name: array for name, array in state.slots.items()}
        self._store.save(step, arrays, plain)
        self._step = step
        for old in (*self._folder.glob("journal-*.jsonl"), *self._folder.glob("updates/*")):
            old.unlink()

    def state_of(self, found: Checkpoint) -> ServerState:
        """Return the weights and slots of a checkpoint; the journal continues after it."""
        self._step = found.step
        parts = {
            prefix: {
                name.removeprefix(prefix): array for name, array in found.arrays.items() if name.startswith(prefix)
            }
            for prefix in (_WEIGHT, _SLOT)
        }
        return ServerState(parts[_WEIGHT], parts[_SLOT])

    # --- the journal --------------------------------------------------------------------------------------------------
    def write(self, event: Event, arrays: Arrays | None, metrics: Mapping[str, float]) -> None:
        """Write an event, after the arrays that belong to it.

        An event with arrays is flushed to the disk, and all before it: its client may have ended and cannot send it
        again. Others may be lost in a power failure: the state before them asks for the same again.
        """
        if not self._journals:
            return
        line = json.dumps({"event": to_json(event), "metrics": dict(metrics), "arrays": arrays is not None}) + "\n"
        if arrays is None and self._journal.exists():
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(line)
        else:
            if arrays is not None:
                array_files.save(self._of(event), arrays, durable=True)
            self._place.append(self._journal.name, line.encode())

    def sync(self) -> None:
        """Flush all events to the disk, also those that a power failure could undo."""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                os.fsync(file.fileno())

    def replayed(self) -> Iterator[tuple[Event, Arrays | None, dict[str, float]]]:
        """Yield the events of the journal; a last line that was cut off had no effect, and is removed."""
        if not self._journal.exists():
            return
        whole = self._journal.read_bytes().split(b"\n")[:-1]
        os.truncate(self._journal, sum(len(line) + 1 for line in whole))
        for line in whole:
            try:
                found = json.loads(line)
                event, metrics, has_arrays = from_json(found["event"]), dict(found["metrics"]), found["arrays"]
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptDataError(
                    f"{self._journal} has a line that is not an event: {error}", path=self._journal
                ) from error
            yield event, array_files.load(self._of(event)) if has_arrays else None, metrics

    @property
    def _journal(self) -> Path:
        return self._folder / f"journal-{self._step}.jsonl"

    def _of(self, event: Any) -> Path:
        what = array_files.name_of(event.client) if isinstance(event, Trained) else "aggregate"
        return self._folder / "updates" / f"{event.round}-{event.attempt}-{what}.safetensors"

    # --- rounds -------------------------------------------------------------------------------------------------------
    def add_round(self, record: RoundRecord) -> None:
        self._place.append(ROUNDS, record.to_json().encode())

    def rounds(self, step: int) -> list[RoundRecord]:
        """Return the records of the first rounds; those of later ones are removed."""
        path = self._folder / ROUNDS
        records = read_rounds(path)[:step] if path.exists() else []
        with self._place.create(ROUNDS) as file:
            file.write("".join(one.to_json() + "\n" for one in records).encode())
        return records
