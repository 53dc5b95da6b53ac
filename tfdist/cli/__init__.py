"""The command ``tfdist``, with one file per subcommand, which is loaded when it is called."""
