"""Files of other libraries, read in place: an index in memory has the place of each example."""
