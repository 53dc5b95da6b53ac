"""docker/monitoring: what Prometheus and Grafana ask for exists, and alerts are raised when they should be.

`promtool` looks as well where it is installed (Debian's package prometheus).
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_docker_files import check
from tfdist import resources

MONITORING = Path(__file__).parents[2] / "docker" / "monitoring"
DASHBOARD = MONITORING / "grafana" / "dashboard.json"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="apt-get install prometheus")


def documented() -> set[str]:
    """The metrics that the documentation names; another test compares them with what is served."""
    text = resources.pages()["monitoring-exporters"].read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(tfdist_\w+)`", text, re.MULTILINE))


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


def queries() -> list[str]:
    board = dashboard()
    variables = [one["definition"] for one in board["templating"]["list"] if one["type"] == "query"]
    return [*variables, *(target["expr"] for panel in board["panels"] for target in panel["targets"])]


def metrics_of(query: str) -> set[str]:
    return set(re.findall(r"\btfdist_\w+", query))


def test_queries_name_only_metrics_that_exist() -> None:
    assert len(queries()) > 15
    for query in (*queries(), *(rule["expr"] for rule in rules())):
        assert metrics_of(query), query
        assert metrics_of(query) <= documented(), query
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query)) | {
            label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(", ")
        }
        assert labels <= {"job", "rank", "phase", "bound", "alert"}, query


def test_most_metrics_are_shown() -> None:
    shown = set().union(*map(metrics_of, queries()))
    assert documented() >= shown >= {name for name in documented() if name.startswith(("tfdist_step", "tfdist_loss"))}


def test_panels_have_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["description"].endswith(".")


def test_every_alert_says_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 6
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "action"}


def test_the_compose_file_fits_its_schema_and_finds_its_files() -> None:
    path = MONITORING / "compose.yaml"
    check(Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    mounted = re.findall(r"^ +- \./(\S+?):", path.read_text(), re.MULTILINE)
    assert len(mounted) == 5
    assert all((MONITORING / name).is_file() for name in mounted)
    source = yaml.safe_load((MONITORING / "grafana" / "datasource.yaml").read_text())["datasources"][0]
    assert source["url"].removeprefix("http://") in path.read_text()


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [["check", "config", "prometheus.yaml"], ["check", "rules", "rules.yaml"], ["test", "rules", "rules-test.yaml"]],
)
def test_promtool_finds_nothing(command: list[str]) -> None:
    *words, name = command
    check("promtool", *words, MONITORING / name)


@needs_promtool
def test_every_query_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    asked = [query for query in queries() if not query.startswith("label_values")]
    written = [
        {"record": f"query_{number}", "expr": query.replace("$job", ".*").replace("$rank", ".*")}
        for number, query in enumerate(asked)
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": written}]}))
    check("promtool", "check", "rules", path)
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": [{"record": "a", "expr": "sum("}]}]}))
    assert subprocess.run(["promtool", "check", "rules", path], capture_output=True).returncode != 0
