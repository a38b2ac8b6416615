"""topkd: exact top-K selection for sparse attention.

``Client`` asks a daemon that all processes of a machine share; scores are read where they lie.
``select`` does the same in this process, without a daemon. Errors are ``topkd.Error``s, one class for
each status in ``topkd.errors``. ``topkd.testing`` has an independent oracle in NumPy.
"""

from . import errors
from ._array import Array
from ._client import Client
from ._lane import Lane
from ._local import select, set_threads
from ._version import __version__
from .errors import Error

__all__ = ["Array", "Client", "Error", "Lane", "__version__", "errors", "select", "set_threads"]
