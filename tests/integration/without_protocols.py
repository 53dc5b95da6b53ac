"""Lets Python list the attributes of a protocol once, in every process that is forked from this one.

TensorFlow and Keras ask for each value that they take whether it fits one of a few protocols. Python 3.11 then goes
through the protocol's bases and annotations twice, which is a hundredth of a short training. No class gains attributes
after its definition here, and what a value has is looked at each time.
"""

import functools
import typing
from typing import Any

_listed: Any = typing._get_protocol_attrs  # type: ignore[attr-defined]
_once = functools.cache(_listed)
typing._get_protocol_attrs = lambda cls: _once(cls)  # type: ignore[attr-defined]
