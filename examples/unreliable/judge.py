"""A rate-limited API on this machine, in place of one on the Internet: it knows whether a sum is right.

    python examples/unreliable/judge.py [--port 9000] [--a-second 20]

More requests than that are answered with 429 and Retry-After, as such APIs do.
"""

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Judge(BaseHTTPRequestHandler):
    a_second = 20.0
    allowed, since = 0.0, 0.0

    def do_GET(self):
        cls, now = type(self), time.monotonic()
        cls.allowed = min(cls.a_second, cls.allowed + cls.a_second * (now - cls.since))
        cls.since = now
        if cls.allowed < 1:
            self.answer(429, {"error": "too many requests"}, {"Retry-After": f"{1 / cls.a_second:.3f}"})
            return
        cls.allowed -= 1
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        right = str(int(asked["left"]) + int(asked["right"])) == asked.get("said", "").strip()
        self.answer(200, {"right": right})

    def answer(self, status, value, headers=()):
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=9000)
    options.add_argument("--a-second", type=float, default=Judge.a_second)
    found = options.parse_args()
    Judge.a_second = found.a_second
    server = ThreadingHTTPServer(("127.0.0.1", found.port), Judge)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
