"""Sharded data parallelism beside plain: memory of each process, bytes on the wire, time of a step."""
