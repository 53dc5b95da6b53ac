"""The codecs: each file has one way to compress."""
