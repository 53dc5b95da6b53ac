"""What several subcommands share: groups of commands, options, progress, signals, completion."""
