"""What is on the disk: records, shards, their indices, the manifest, and the schema of the examples."""
