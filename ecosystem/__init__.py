"""Models of Keras' ecosystem under every strategy, beside one device: `make ecosystem`.

`tfdist verify` compares small models made for it. The models here are those that users bring, built by other packages
from tiny configurations, without a download. docs/ecosystem.md has what came of them.
"""
