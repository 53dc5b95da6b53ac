"""How long after the death of a worker all train again, beside Horovod elastic."""
