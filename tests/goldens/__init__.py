"""What tfdist promises to keep, as texts and samples: `make goldens` writes the texts anew, on purpose."""
