"""A scripted OpenAI-compatible endpoint on loopback: a real HTTP server that answers what a test wrote down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = {"prompt": 11, "completion": 7}


@dataclass(frozen=True)
class Reply:
    """One scripted reply; `hang` holds the connection until the endpoint closes, `trickle` sends spaces until then."""

    status: int = 200
    body: Any = None
    hang: bool = False
    trickle: bool = False


def says(content: str | dict[str, Any] | None, **message: Any) -> Reply:
    text = json.dumps(content) if isinstance(content, dict) else content
    finish = message.pop("finish_reason", "stop")
    return Reply(
        body={
            "id": "c", "object": "chat.completion", "created": 1, "model": "scripted",
            "choices": [{"index": 0, "finish_reason": finish,
                         "message": {"role": "assistant", "content": text, **message}}],
            "usage": {"prompt_tokens": TOKENS["prompt"], "completion_tokens": TOKENS["completion"], "total_tokens": 18},
        }
    )  # fmt: skip


def fails(status: int, message: str) -> Reply:
    return Reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": None, "param": None}})


@dataclass
class Endpoint:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def scripted_endpoint(replies: Sequence[Reply] | Callable[[dict[str, Any]], Reply]) -> Iterator[Endpoint]:
    """Serve `replies` one after the other, the last one for ever; or what a function makes of each request."""
    closing = threading.Event()
    left = [] if callable(replies) else list(replies)

    def reply_to(request: dict[str, Any]) -> Reply:
        if callable(replies):
            return replies(request)
        return left.pop(0) if len(left) > 1 else left[0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            endpoint.requests.append(json.loads(self.rfile.read(length)))
            endpoint.keys.append(self.headers.get("Authorization"))
            endpoint.paths.append(self.path)
            reply = reply_to(endpoint.requests[-1])
            if reply.hang:
                closing.wait()
                return
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            while reply.trickle and not closing.wait(0.05):
                self.wfile.write(b" ")
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def calls(*wishes: tuple[str, Any]) -> Reply:
    made = [
        {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(wishes)
    ]
    return says(None, tool_calls=made, finish_reason="tool_calls")
