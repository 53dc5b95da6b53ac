"""`tfdist data`, with one file for each subcommand, which parses, calls `tfdist.data`, and prints the result."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "write": "Write examples as TFRecord shards, with an index and a manifest.",
    "index": "Index the TFRecord files in DIRECTORY as they are.",
    "info": "Show the content of DIRECTORY: examples, sizes, shards, schema, labels.",
    "show": "Show examples of DIRECTORY: texts, arrays, pictures on a contact sheet.",
    "stats": "Sum up DIRECTORY: features, labels, shards, duplicates, overlap with another.",
    "verify": "Check every byte of DIRECTORY, and list what is corrupt.",
    "repair": "Remove corrupt records from DIRECTORY, or copy the others.",
    "split": "Divide the examples of DIRECTORY among simulated clients.",
}

command = lazy_group(
    __name__,
    COMMANDS,
    "Write examples as TFRecord files that are read shuffled, divided and resumed exactly; find and repair damage.",
    examples={
        "tfdist data write photos data": "photos/train/CLASS/*.jpg becomes data/train",
        "tfdist data info data/train": "what it holds",
        "tfdist data verify data/train": "is every byte sound?",
    },
    page="data",
)
