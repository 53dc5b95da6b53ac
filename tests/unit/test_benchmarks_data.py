"""The data benchmark without TensorFlow: what is compared with what, what is asked, its JSON."""

import json
from typing import Any

from benchmarks.files.data_race import PEERS, TARGETS, DataBench, DataReport, DataRow, DataTarget, measured
from tfdist.bench.ratio import Quartiles

SETUP: dict[str, Any] = {"rows": 4096, "images": 256, "written_rows": 10, "written_images": 5, "rounds": 2}


def report() -> DataReport:
    """Every side that something is asked of takes half of its peer's time, and a quarter more of CPU time."""
    setup = DataBench(**SETUP)
    rows = [
        DataRow(subject, kind, way, setup.examples(kind, subject), [2.0, 4.0], [4.0, 8.0])
        for subject, way in PEERS.items()
        for kind in (("resume",) if subject == "resume" else ("rows", "images"))
    ]
    rows += [DataRow(s, k, way, setup.examples(k, s), [1.0, 2.0], [5.0, 10.0]) for s, k, way in TARGETS]
    rows.append(DataRow("resume", "resume", "tf.data, fresh start", 1, [1.0, 1.0], [1.0, 1.0]))
    rows.append(DataRow("resume", "resume", "tf.data, skip", 1, [7.0, 7.0], [7.0, 7.0]))
    about = {
        **dict.fromkeys(("processor", "cores", "tensorflow", "python", "time"), "some"),
        "load average": "0.1",
        "load average at the end": "1.9",
    }
    return DataReport(
        setup=setup,
        rows=rows,
        state_bytes={"tfdist": 150, "tf.data": 12_345_678},
        left_out={"grain": "it is not installed"},
        machine=about,
    )


def test_ratios_are_paired_by_round_and_point_the_same_way_as_their_names() -> None:
    peer = DataRow("read", "rows", "tf.data", 10, [2.0, 8.0], [1.0, 2.0])
    found = DataRow("read", "rows", "fixed, native", 10, [1.0, 4.0], [2.0, 4.0]).against(peer)
    assert [found[name].median for name in ("speed", "time", "cpu")] == [2.0, 0.5, 2.0]


def test_a_target_is_met_at_its_bound_and_not_beyond() -> None:
    for at_least, other in ((True, 1.79), (False, 1.81)):
        target = DataTarget("speed", 1.8, at_least=at_least)
        assert target.is_met(Quartiles(1.8, 0.0, 9.0))
        assert not target.is_met(Quartiles(other, 0.0, 9.0))
    assert str(DataTarget("cpu", 0.06, at_least=False)) == "cpu <= 0.06"


def test_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[str] = []
    arms = {("rows", name): lambda name=name: calls.append(name) for name in "ab"}
    told: list[str] = []
    rows = measured("read", arms, DataBench(**SETUP), told.append)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert [(row.way, len(row.seconds), len(row.cpu_seconds), row.examples) for row in rows] == [
        ("a", 2, 2, 4096),
        ("b", 2, 2, 4096),
    ]
    assert told[0] == "read rows: a, warming up"
    assert told[-1] == "read rows: b, round 2 of 2"


def test_the_report_is_json_with_ratios_and_targets() -> None:
    read = json.loads(report().to_json())
    found = {(each["kind"], each["way"]): each for each in read["results"]}
    assert found["rows", "fixed, native"]["speed"]["median"] == 2.0
    assert found["rows", "fixed, native"]["is_met"] is True
    assert found["rows", "tfdist"]["is_met"] is False
    assert found["resume", "tf.data, skip"]["time"]["median"] == 7.0
    assert read["state_bytes"]["tfdist"] == 150
