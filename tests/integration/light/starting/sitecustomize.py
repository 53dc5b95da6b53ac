"""Lets Python search for cycles of garbage rarely: in TensorFlow's modules that is a third of what a process costs.

Half of it is the import, which makes a million objects that stay; half is the end, where Python looks through them all.
Python imports this module at every start in whose PYTHONPATH the folder is.
"""

import atexit
import gc

gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)  # called behind all that are registered later; what nobody refers to any more still goes
