"""A schedule as it is run: processes whose layers sleep, beside what the schedule's timeline says."""
