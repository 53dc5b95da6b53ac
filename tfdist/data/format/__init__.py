"""The format on disk: records, shards, indices, manifest, and the schema of examples."""
