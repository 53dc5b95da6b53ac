"""``python -m tfdist`` is the command ``tfdist``."""

from tfdist.cli.main import main

if __name__ == "__main__":
    main(prog_name="tfdist")
