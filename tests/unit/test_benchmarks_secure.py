"""The benchmark of secure sums: its sums are right, and its ratios are those of CPU time."""

import numpy as np
import pytest

from benchmarks.federated.secure_race import ARMS, SecureBench, SecureReport, masked_sum, plain_mean

FIGURES = ((1.0, 2.0), (4.0, 12.0), (0.0, 1.0))


def test_both_ways_of_tfdist_give_the_mean() -> None:
    vector = np.linspace(-0.9, 0.9, 50, dtype=np.float32)
    assert masked_sum([f"client-{number}" for number in range(5)], vector)["error"] <= 1 / 32_767
    assert plain_mean(5, vector)["error"] < 1e-7


def test_ratios_are_of_all_clients_and_the_server() -> None:
    measured = {
        arm: [{"client": client, "server": server, "error": 0.0}]
        for arm, (client, server) in zip(ARMS, FIGURES, strict=True)
    }
    about = dict.fromkeys(("processor", "cores", "tensorflow", "horovod", "python", "time", "load average"), "-")
    about["load average at the end"] = "-"
    report = SecureReport(setup=SecureBench(clients=10), machine=about, measured=measured, neighbours=9)
    found = {name: one.median for name, one in report.derived().items()}
    assert found == pytest.approx({"against_flower": 52 / 12, "client_against_flower": 4, "server_against_plain": 2})
    assert "10 clients" in "".join(one for one in report.shown() if isinstance(one, str))
