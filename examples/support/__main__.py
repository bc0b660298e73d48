"""``python -m surehand.examples.support``: runs the help desk and its mail server."""

from __future__ import annotations

import sys
from functools import partial

from surehand.examples.shop.program import CannotListen, listening, parser_of, serve
from surehand.examples.support.desk import build


def main() -> int:
    """Run both and return the exit code."""
    parser = parser_of("support", 8091, __doc__)
    parser.add_argument("--smtp-port", type=int, default=8025, help="0 takes a free one")
    options = parser.parse_args()
    try:
        mail = listening("support", options.host, options.smtp_port, "--smtp-port")
    except CannotListen as error:
        print(error, file=sys.stderr)
        return 1
    host, port = mail.getsockname()[:2]
    print(f"support takes mail on {host}:{port}", flush=True)
    with mail:
        return serve("support", options, partial(build, mail=mail))


if __name__ == "__main__":
    sys.exit(main())
