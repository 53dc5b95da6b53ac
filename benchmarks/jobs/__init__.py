"""What jobs do beside training: backups, recoveries and the recording of steps."""
