"""The state that stays with a client between rounds: personal layers and control variates.

The new state of a round counts only once the server says that the update which came with it was used. Until then it is
pending, so a client that was late, or that trains a round twice, begins from the same state.
"""

from pathlib import Path

from tfdist.federated.client_update import Arrays
from tfdist.federated.clients import array_files

_COUNTED = "counted.safetensors"
Turn = tuple[int, int]  # round and attempt


class ClientStates:
    """States of clients in a folder, one sub-folder each; ``durable`` if they must survive a power failure."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder, self._durable = folder, durable

    def load(self, client: str, counted: Turn | None) -> Arrays:
        """Return the state from which a client resumes; its update of the turn ``counted`` was the last one used.

        With None, no update of this run was used: the state is empty, whatever another run has left.
        """
        if counted is None:
            return {}
        paths = [self._of(client) / name for name in (_pending(counted), _COUNTED)]
        return next((array_files.load(path) for path in paths if path.exists()), {})

    def save(self, client: str, turn: Turn, arrays: Arrays, *, counted: Turn | None) -> None:
        """Keep the state after the training of this turn, in place of all but the one from which it began.

        The older state goes no sooner: a server that is killed while it evaluates asks for the same training again.
        """
        folder = self._of(client)
        if counted is not None and (before := folder / _pending(counted)).exists():
            before.replace(folder / _COUNTED)
        for old in folder.glob("pending-*"):
            old.unlink()
        array_files.save(folder / _pending(turn), arrays, durable=self._durable)

    def _of(self, client: str) -> Path:
        return self._folder / array_files.name_of(client)


def _pending(turn: Turn) -> str:
    return f"pending-{turn[0]}-{turn[1]}.safetensors"
