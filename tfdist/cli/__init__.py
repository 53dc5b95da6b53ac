"""The command ``tfdist``, with one file for each subcommand. A file is loaded when its subcommand is called."""
