"""``python -m surehand.examples.shop``: runs the shop until it is stopped, or for a command."""

from __future__ import annotations

import sys

from surehand.examples.shop.program import parser_of, serve
from surehand.examples.shop.server import build

if __name__ == "__main__":
    sys.exit(serve("shop", parser_of("shop", 8090, __doc__).parse_args(), build))
