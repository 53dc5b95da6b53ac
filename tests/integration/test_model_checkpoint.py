"""Keras' ModelCheckpoint where all processes save together."""

import os
from pathlib import Path

import keras
import pytest

from tfdist.compat.keras import callback_fields


@pytest.mark.quick
def test_a_folder_that_another_process_makes_at_the_same_time_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it just before Keras would, which has looked already and found none."""
    callback = keras.callbacks.ModelCheckpoint(tmp_path / "new" / "{epoch}" / "model.keras")
    callback_fields.let_share_folder(callback)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    callback.set_model(model)
    exists = os.path.exists

    def made_meanwhile(path: str) -> bool:
        found = exists(path)
        if not str(path).endswith(".keras"):
            os.makedirs(path, exist_ok=True)
        return found

    monkeypatch.setattr(os.path, "exists", made_meanwhile)
    callback.on_epoch_end(0, {})
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.keras")] == ["new/1/model.keras"]
