"""The command `tfdist build horovod`, which the package `tfdist-horovod` provides."""

from tfdist import build as build  # says how to install that package where it is missing
from tfdist_horovod.command import command as command
