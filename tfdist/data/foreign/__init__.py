"""Files of other libraries, read where they lie: an index in memory says where each example is."""
