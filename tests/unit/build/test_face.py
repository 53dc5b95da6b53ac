"""`tfdist.build` where the package that builds Horovod is missing."""

import importlib
import sys

import pytest

from tests.refusals import refused
from tfdist.errors import MissingDependencyError


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tfdist.build", raising=False)
    monkeypatch.setitem(sys.modules, "tfdist_horovod", None)
    with refused(MissingDependencyError, name="tfdist-horovod", mentions=["pip install ./packaging/horovod"]):
        importlib.import_module("tfdist.build")
