"""The parts of `BackupAndRestore`: what is saved and when, where training goes on, and how it ends."""
