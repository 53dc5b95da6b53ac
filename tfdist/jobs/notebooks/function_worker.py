"""A worker of a function job: calls the function, and writes the result if it is the chief.

`python -m tfdist.jobs.notebooks.function_worker CODE RESULT`; `function_transfer` describes both files.
"""

import os
import sys
from pathlib import Path

from tfdist import cluster
from tfdist.jobs.notebooks.function_transfer import name_of, receive_function, send_result
from tfdist.variables import CALL_FOLDER


def main(code: str, result: str) -> None:
    folder = CALL_FOLDER.read(os.environ)
    if folder:  # on another host
        code, result = (os.path.join(folder, os.path.basename(path)) for path in (code, result))
    function, arguments = receive_function(Path(code))
    returned = function(*arguments)
    if cluster.from_environment().is_chief:
        path = Path(result)
        path.unlink(missing_ok=True)  # of an earlier start
        send_result(path, returned, of=name_of(function))


if __name__ == "__main__":
    del sys.argv[3:]
    main(*sys.argv[1:])
