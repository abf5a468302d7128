"""An endpoint like OpenAI's on loopback whose answers somebody writes into files: a person, or a model by hand.

Each request becomes FOLDER/0001.request.json, and its messages FOLDER/0001.request.txt to be read. The reply is made of
what lies in FOLDER/0001.answer.json once that is whole: an answer's JSON object (or `{"content": "any text"}`), or
looks, `{"look": [["findings", {"words": "group_size"}]]}`. Nothing is answered by itself, and the model's name is the
caller's: say in it who answers.

    python benchmarks/answered_by_hand.py FOLDER --port 8765
    OPENAI_BASE_URL=http://127.0.0.1:8765/v1 AJET_PLANNER_RECORD=said.jsonl AJET_PLANNER_TIMEOUT=86400 \\
        ajet research "..." --planner llm --planner-model NAME
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

PAUSE_S = 0.2
CHARACTERS = 4
"""Of a token, about: nobody counts them here, and the reply says so by round numbers."""


def as_text(request: Mapping[str, Any]) -> str:
    """Return the messages of a request, and the tools that it offers, for somebody to read."""
    parts = [
        f"== {entry['role']}\n{entry.get('content') or json.dumps(entry.get('tool_calls'))}"
        for entry in request["messages"]
    ]
    tools = [json.dumps(tool["function"], ensure_ascii=False) for tool in request.get("tools", ())]
    return "\n\n".join([*parts, *(["== may be looked at\n" + "\n".join(tools)] if tools else [])])


def as_completion(request: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat completion that an answer is."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.get("content") or json.dumps(answer)}
    if looks := answer.get("look"):
        message = {"role": "assistant", "content": None, "tool_calls": [
            {"id": f"look-{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for number, (name, given) in enumerate(looks, start=len(request["messages"]))
        ]}  # fmt: skip
    read, written = (len(json.dumps(part)) // CHARACTERS for part in (request, message))
    return {
        "id": "by-hand", "object": "chat.completion", "created": int(time.time()), "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if looks else "stop"}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }  # fmt: skip


def wait_for(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, once it is there and whole."""
    while True:
        try:
            answer = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            time.sleep(PAUSE_S)
        else:
            if isinstance(answer, dict):
                return answer
            time.sleep(PAUSE_S)


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = count(1 + len(list(folder.glob("*.request.json"))))

    class ByHand(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = f"{next(numbers):04d}"
            (folder / f"{name}.request.json").write_text(json.dumps(request, indent=1), encoding="utf-8")
            (folder / f"{name}.request.txt").write_text(as_text(request), encoding="utf-8")
            print(f"{name}: answer in {folder / name}.answer.json", flush=True)
            body = json.dumps(as_completion(request, wait_for(folder / f"{name}.answer.json"))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are told above."""

    return ThreadingHTTPServer(("127.0.0.1", port), ByHand)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8765)
    asked = parser.parse_args()
    make_server(asked.folder, asked.port).serve_forever()


if __name__ == "__main__":
    main()
