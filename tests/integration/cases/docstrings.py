"""Runs the examples in the docstrings of modules: python docstrings.py MODULE ...; the last line has the numbers.

All in one process, because each loads TensorFlow. What an example writes is shown when it fails.
"""

import doctest
import importlib
import sys


def main(names: list[str]) -> int:
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    for name in names:
        module = importlib.import_module(name)
        for test in finder.find(module, name):
            runner.run(test)
    print(f"{runner.tries} lines of examples, {runner.failures} failed")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
