"""Models in parts (over processes, in stages, with weights and slots in shards), compared with whole ones."""
