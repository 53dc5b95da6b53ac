"""The site: built without a warning, with every page and every public name on it."""

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

from tests.unit.test_docs_api import public

ROOT = Path(__file__).parents[2]
SECONDS_FOR_THE_SITE = 800


# Without the search index, and without a process that formats each long signature, this takes a third of the time.
BUILD = """
import sys
from material.plugins.search.plugin import SearchIndex
from mkdocs.__main__ import cli
from mkdocstrings_handlers.python._internal import rendering
assert SearchIndex.add_entry_from_context and rendering._get_formatter
SearchIndex.add_entry_from_context = lambda index, page: None
rendering._get_formatter = lambda: lambda code, line_length: code
cli(["build", "--strict", "--site-dir", sys.argv[1]], standalone_mode=False)  # with --quiet it counts no warning
print("loaded", *{name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "horovod"})
"""


def test_the_site_is_built_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-c", BUILD, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=SECONDS_FOR_THE_SITE)
    assert done.returncode == 0, done.stderr
    assert "Building documentation" in done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    assert done.stdout == "loaded\n", "it is built in seconds because it loads no framework"
    matrix = (tmp_path / "site" / "docs" / "matrix" / "index.html").read_text()
    for kind, text in (
        ("green", "2e-07"),
        ("bad", "WRONG 1.1e+00"),
        ("bad", "ERROR ValueError"),
        ("refused", "refused"),
    ):
        assert f'<td class="cell-{kind}">{text}</td>' in matrix, "a cell of the matrix has no colour"
    assert "site.css" in matrix
    options = (tmp_path / "site" / "docs" / "cli" / "index.html").read_text()
    assert "--max-restarts" in options
    assert "tfdist data write" in options
    _, _, _, _, packed = (tmp_path / "site" / "objects.inv").read_bytes().split(b"\n", 4)
    present = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    missing = [name for name, target in public().items() if not {name, target.path} & present]
    assert not missing, f"not in the API reference: {missing}"
    for page in sorted((tmp_path / "site" / "docs" / "api").glob("*/index.html")):
        text = page.read_text()
        as_text = re.findall(r"<blockquote>|<p>[^<]*\b(?:Args|Attributes|Returns|Raises|Examples?):", text)
        assert not as_text, f"{page.parent.name}: parts of docstrings are shown as text: {as_text}"
        assert '<span class="gp">&gt;&gt;&gt; </span>' in text, f"{page.parent.name} has no example"
    for page in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("strategies/**/*.md")]:
        path = page.relative_to(ROOT)
        folder = path.parent if path.name in ("README.md", "index.md") else path.with_suffix("")
        assert (tmp_path / "site" / folder / "index.html").is_file(), f"{path} is not on the site"
