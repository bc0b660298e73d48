"""A real HTTP server, for whoever plays an outside service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: By path, headers (in small letters) and body: status, headers and body of the answer.
Answer = Callable[[str, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]


@contextmanager
def serve_posts(answer: Answer) -> Iterator[str]:
    """Listen on a free port; yields the URL, without a path."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            code, more, body = answer(self.path, headers, sent)
            self.send_response(code)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass  # pytest shows what the test says

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
