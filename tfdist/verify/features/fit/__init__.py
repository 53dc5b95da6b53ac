"""Features of `fit`: calls, callbacks, saving."""
