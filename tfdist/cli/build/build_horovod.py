"""The command `tfdist build horovod`, which the package `tfdist-horovod` provides."""

from tfdist import build as build  # if the package is missing, this says how to install it
from tfdist_horovod.command import command as command
