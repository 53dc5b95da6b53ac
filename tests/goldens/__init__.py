"""The promises of tfdist, as texts and samples: `make goldens` writes the texts anew, on purpose."""
