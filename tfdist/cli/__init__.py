"""The command ``tfdist``: one file per subcommand, each loaded when it is called."""
