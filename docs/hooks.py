"""What MkDocs calls while it builds the site: its pages are those of the repository, under the same names.

MkDocs takes the pages of one folder. Here some stand elsewhere, beside what they are about: the README, the cards of
the strategies, the notes on images. The site has the tree of the repository, so a link that leads somewhere on GitHub
leads there on the site as well, and no page is written twice.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "strategies/**/*.md", "docker/*.md", "notebooks/*.md")
PICTURES = ("docs/images/*",)
LINK = re.compile(r"\]\(([^)#:\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Return the pages, pictures, and files to which a page links, in place of what MkDocs has found in docs/."""
    own = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    linked = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text())}
    others = {path for pattern in PICTURES for path in ROOT.glob(pattern)} | linked
    wanted = [*pages, *sorted(path for path in others - set(pages) if path.is_file())]
    return Files([*own, *(_file(path, config) for path in wanted)])


def _file(path: Path, config: Any) -> File:
    return File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls)
