"""Tables as sources: CSV, Parquet, and tables in memory, all through Arrow."""
