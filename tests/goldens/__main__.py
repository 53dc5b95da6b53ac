"""The command: writes every golden text and every made part of a page anew, and names the files that changed."""

from pathlib import Path

from tests.goldens.page_parts import PAGES, ROOT, filled
from tests.goldens.texts import FOLDER, TEXTS


def main() -> None:
    for name, make in TEXTS.items():
        _write(FOLDER / name, make())
    for page in PAGES:
        _write(page, filled(page.read_text(encoding="utf-8")))


def _write(path: Path, text: str) -> None:
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    path.write_text(text, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {'unchanged' if text == before else 'written'}")


if __name__ == "__main__":
    main()
