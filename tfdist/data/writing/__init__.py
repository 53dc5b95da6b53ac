"""Writers of sources into a directory of shards with indices and a manifest."""
