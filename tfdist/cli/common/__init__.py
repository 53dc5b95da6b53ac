"""Shared parts of subcommands: command groups, options, progress, signals, completion."""
