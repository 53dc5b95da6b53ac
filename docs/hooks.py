"""The hooks that MkDocs calls while it builds the site: its pages are the repository's, under the same names.

MkDocs takes the pages of one folder. Some pages of the repository stand in other folders, beside their subjects: the
README, the cards of the strategies, the notes on images. The site has the tree of the repository. So a link leads to
the same page on GitHub and on the site, and no page is written twice.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "strategies/**/*.md", "docker/*.md", "notebooks/*.md")
PICTURES = ("docs/images/*",)
COMMANDS = "docs/cli.md"
MATRIX = ("docs/matrix.md", "README.md")  # pages with cells of the matrix, which get their colours here
CELL = re.compile(r"<td>((?:WRONG|ERROR|HANG|CRASH)\b[^<]*|refused[^<]*|left out|-|[\d.]+(?:e-\d+)?|0)</td>")
STYLES = "docs/site.css"
LINK = re.compile(r"\]\(([^)#:\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Return the pages, pictures, and files to which a page links, in place of what MkDocs has found in docs/."""
    own = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    linked = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text())}
    others = {path for pattern in PICTURES for path in ROOT.glob(pattern)} | linked
    others.add(ROOT / STYLES)
    wanted = [*pages, *sorted(path for path in others - set(pages) if path.is_file())]
    return Files([*own, *(_file(path, config) for path in wanted)])


def _file(path: Path, config: Any) -> File:
    return File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the text of a page; that of the command line goes on with what each command says to `--help`."""
    if page.file.src_uri != COMMANDS:
        return markdown
    from tfdist.cli.main import main  # loads no TensorFlow, and each command when it is asked

    return "\n".join([markdown, *_helps(main, click.Context(main, info_name="tfdist", terminal_width=100))])


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Return a page with the cells of the matrix marked by what they say; docs/site.css gives each its colour."""
    if page.file.src_uri not in MATRIX:
        return html
    tables = re.split(r"(?=<table>)", html)
    return "".join(CELL.sub(_marked, part) if "<th>feature</th>" in part else part for part in tables)


def _marked(cell: re.Match[str]) -> str:
    word = cell[1].split()[0]
    kind = {"refused": "refused", "left": "none", "-": "none"}.get(word, "bad" if word.isalpha() else "green")
    return f'<td class="cell-{kind}">{cell[1]}</td>'


def _helps(command: click.Command, context: click.Context) -> Iterator[str]:
    if context.parent is not None:
        yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _helps(below, click.Context(below, info_name=name, parent=context, terminal_width=100))
