"""Exchange: the op, and its implementations in the order in which they are tried."""

from dovetail.kernels.exchange.op import Runs, exchange, exchange_back, exchange_op

# isort: split
# Each of these registers itself: the first that supports a call runs it.
from dovetail.kernels.exchange import padded as _padded

# isort: split
from dovetail.kernels.exchange import ragged as _ragged

__all__ = ["Runs", "exchange", "exchange_back", "exchange_op"]
del _padded, _ragged
