"""The command: writes every golden text anew, and names those that changed."""

from tests.goldens.texts import FOLDER, TEXTS


def main() -> None:
    for name, make in TEXTS.items():
        path = FOLDER / name
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        after = make()
        path.write_text(after, encoding="utf-8")
        print(f"{path.relative_to(FOLDER.parents[1])}: {'unchanged' if after == before else 'written'}")


if __name__ == "__main__":
    main()
