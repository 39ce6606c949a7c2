"""An S3 server for tests: moto's, with faults on request: python -m tests.helpers.store_server.

Faults are set by a POST of a JSON object to /-faults, and stay until they are replaced:

every       a fault strikes every so many requests (2: every second one)
status      answer with this status instead
code        error code of that answer; by default ExpiredToken for 400, SlowDown for others
cut         send only half of the body of an answer to GET, and close the connection
lost        do what the request asks, and answer with an error as if it had not been done
seconds     wait so long before the answer
methods     methods that are struck; by default all
contains    text that the path must contain
clock       seconds by which the server's clock is ahead, in the times of objects; every answer has it
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Any

_MESSAGES = {
    "ExpiredToken": "The provided token has expired.",
    "RequestTimeTooSkewed": "The difference between the request time and the current time is too large.",
}


@dataclass
class StoreServer:
    """A running server."""

    address: str
    sent: int = 0
    """Bytes of answers to the requests that `faults` counted last."""

    received: int = 0
    """Bytes of these requests."""

    _buckets: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[StoreServer]:
        """Start a server, and stop it at the end."""
        command = [sys.executable, "-m", "tests.helpers.store_server"]
        root = Path(__file__).parents[2]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
            assert process.stdout is not None
            try:
                yield cls(f"http://127.0.0.1:{process.stdout.readline().strip()}")
            finally:
                process.kill()

    def new_bucket(self) -> str:
        """Make an empty bucket, and return its name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        urllib.request.urlopen(urllib.request.Request(f"{self.address}/{name}", method="PUT")).close()
        return name

    def put(self, bucket: str, key: str, content: bytes = b"") -> None:
        """Write an object of any name, also of one that obstore does not write."""
        path = f"{self.address}/{bucket}/{key}"
        urllib.request.urlopen(urllib.request.Request(path, content, method="PUT")).close()

    def faults(self, **faults: Any) -> dict[str, int]:
        """Set the faults; return the number of requests by method since they were last set."""
        request = urllib.request.Request(f"{self.address}/-faults", json.dumps(faults).encode(), method="POST")
        with urllib.request.urlopen(request) as answer:
            counted: dict[str, int] = json.loads(answer.read())
        self.sent, self.received = counted.pop("sent", 0), counted.pop("received", 0)
        return counted


class Faults:
    """WSGI layer that injects faults in front of an application, and counts requests by method, and their bytes."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._faults: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self._counted: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/-faults":
            length = int(environ.get("CONTENT_LENGTH") or 0)
            self._faults, self._numbers = json.loads(environ["wsgi.input"].read(length) or b"{}"), itertools.count(1)
            counted, self._counted = self._counted, {}
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(counted).encode()]
        self._count(method, 1)
        self._count("received", int(environ.get("CONTENT_LENGTH") or 0))
        faults = self._faults
        if faults and method in faults.get("methods", [method]) and faults.get("contains", "") in path:
            number = next(self._numbers)
            if number > faults.get("after", 0) and number % faults.get("every", 1) == 0:
                time.sleep(faults.get("seconds", 0))
                if faults.get("lost"):
                    b"".join(self._application(environ, lambda *_: None))
                    start_response("500 Fault", [("Content-Type", "application/xml")])
                    return [_error({"status": 500})]
                if "status" in faults:
                    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                    status = f"{faults['status']} Fault"
                    start_response(status, [("Content-Type", "application/xml")])
                    return [_error(faults) if method != "HEAD" else b""]
                if faults.get("cut") and method == "GET":
                    body = b"".join(self._application(environ, start_response))
                    return [body[: len(body) // 2]]
        ahead = timedelta(seconds=faults.get("clock", 0))
        body = b"".join(self._application(environ, _dated(start_response, ahead) if ahead else start_response))
        if ahead and b"<LastModified>" in body:
            body = _LISTED.sub(lambda found: _listed(found, ahead), body)
        self._count("sent", len(body))
        return [body]

    def _count(self, name: str, amount: int) -> None:
        with self._lock:
            self._counted[name] = self._counted.get(name, 0) + amount


def _error(faults: dict[str, Any]) -> bytes:
    """Return the body of an answer with an error, which only HEAD has none of."""
    code = faults.get("code", "ExpiredToken" if faults["status"] == 400 else "SlowDown")
    message = f"<Message>{_MESSAGES[code]}</Message>" if code in _MESSAGES else ""
    return f"<Error><Code>{code}</Code>{message}</Error>".encode()


_LISTED = re.compile(rb"(?<=<LastModified>)[^<]*(?=</LastModified>)")


def _listed(found: re.Match[bytes], ahead: timedelta) -> bytes:
    """Return the time of an object in a list, as a clock that is ahead tells it: of the same length."""
    text = found[0].decode()
    time_of = datetime.fromisoformat(text.replace("Z", "+00:00")) + ahead
    return time_of.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()[: len(text) - 1] + b"Z"


def _dated(start_response: Any, ahead: timedelta) -> Any:
    """Return `start_response` with times as a clock that is ahead tells them."""

    def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        moved = [
            (name, format_datetime(parsedate_to_datetime(value) + ahead, usegmt=True))
            if name.lower() in ("date", "last-modified")
            else (name, value)
            for name, value in headers
        ]
        return start_response(status, moved, *more)

    return started


def main() -> None:
    """Serve on a free port, printed as the only line."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *arguments: Any, **named: Any) -> None:
            """Say nothing."""

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    server = make_server("127.0.0.1", 0, Faults(create_backend_app("s3")), threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
