"""Parts that subcommands share: command groups, options, progress, signals, completion."""
