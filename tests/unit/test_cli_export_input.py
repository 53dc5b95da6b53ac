"""An exporter beside a job ends at the word of the job, and by itself."""

import os
import subprocess
import sys

from tfdist.cli.export_command import end_with_input
from tfdist.waiting import Flag

SECONDS = 60.0


def test_it_is_over_at_a_line_and_at_the_end_of_the_input() -> None:
    for data in (b"\n", b""):
        reads, writes = os.pipe()
        enough = Flag()
        end_with_input(enough, reads)
        if data:
            os.write(writes, data)
        os.close(writes)
        assert enough.wait(SECONDS)
        os.close(reads)


def test_a_process_ends_well_while_its_input_is_open() -> None:
    code = (
        "from tfdist.cli.export_command import end_with_input; from tfdist.waiting import Flag; enough = Flag(); "
        "end_with_input(enough); enough.wait(0.1)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.wait(SECONDS) == 0
