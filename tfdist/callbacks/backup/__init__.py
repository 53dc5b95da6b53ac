"""The parts of `BackupAndRestore`: the saved state, the times of saving, and the position where training resumes."""
