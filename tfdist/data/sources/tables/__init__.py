"""Tables as sources: CSV, Parquet, Arrow, and tables in memory, all through Arrow."""
