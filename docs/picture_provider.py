"""An identity provider for pictures: it signs everybody in at once, as nobody who is known here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

#: As the provider knows the pages.
CLIENT: Final = "surehand-approvals"
#: Whom it signs in.
SUBJECT: Final = "00u3tqnew"
_LASTS_S: Final = 300


class _Provider(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "of-pictures"})
        self.issuer = f"http://localhost:{self.server_port}"

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def tokens(self, nonce: str) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": SUBJECT,
            "nonce": nonce,
            "iat": now,
            "exp": now + _LASTS_S,
        }
        header = {"alg": "RS256", "kid": "of-pictures"}
        return {"id_token": jwt.encode(header, claims, self.key), "token_type": "Bearer"}


class _Answers(BaseHTTPRequestHandler):
    server: _Provider

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        match url.path:
            case "/.well-known/openid-configuration":
                self._tell(self.server.metadata())
            case "/keys":
                self._tell({"keys": [self.server.key.as_dict(private=False)]})
            case "/authorize":
                asked = {name: given for name, [given] in parse_qs(url.query).items()}
                # Nobody else is here: the code need not be kept, and says what it is for.
                back = {"code": asked["nonce"], "state": asked["state"]}
                self.send_response(302)
                self.send_header("Location", f"{asked['redirect_uri']}?{urlencode(back)}")
                self.end_headers()
            case _:
                self.send_error(404)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        [nonce] = parse_qs(sent)["code"]
        self._tell(self.server.tokens(nonce))

    def _tell(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def provider() -> Iterator[str]:
    """Run it for as long as the block lasts.

    Yields:
        Its issuer.
    """
    server = _Provider()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
