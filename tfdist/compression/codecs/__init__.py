"""The codecs, one per file."""
