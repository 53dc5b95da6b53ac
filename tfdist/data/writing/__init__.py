"""From sources to a directory of shards with indices and a manifest."""
