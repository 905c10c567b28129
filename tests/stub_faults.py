"""How the stub server speaks HTTP, and every way in which it can fail."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stub_server import StubServer

HANG = 30.0  # seconds; longer than any test waits

Fault = Literal[
    "",
    "500",
    "429",
    "400",
    "401",
    "307",
    "hang",
    "drip",
    "cut",
    "html",
    "drop",
    "big",
    "renamed",
    "bare",
    "other prompt",
    "abort",
]


def handler_of(stub: StubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802 - the name is the library's
            if not self._admitted():
                return
            path = self.path.partition("?")[0]
            page = stub.pages().get(path.removeprefix(stub.prefix)) if path.startswith(stub.prefix) else None
            if page is None:
                self._send(404, b'{"detail":"Not Found"}')
            else:
                self._send(200, page.encode() if isinstance(page, str) else json.dumps(page).encode())

        def do_POST(self) -> None:  # noqa: N802 - the name is the library's
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._admitted():
                return
            if self.path != stub.prefix + stub.endpoint:
                self._send(404, b'{"detail":"Not Found"}')
                return
            fault = stub.entered(body)
            try:
                stub.over.wait(stub.delay)
                self._answer(body, fault)
            finally:
                stub.left()

        def _answer(self, body: dict[str, Any], fault: Fault) -> None:
            if fault.isdecimal():
                self._send(int(fault), json.dumps({"error": {"message": "as told"}}).encode())
            elif fault == "hang":
                stub.over.wait(HANG)
            elif fault == "html":
                self._send(200, b"<html><body>502 Bad Gateway</body></html>")
            elif fault == "drop":
                self.close_connection = True
            else:
                self._good(json.dumps(_spoiled(stub.answer(body), fault)).encode(), fault)

        def _good(self, data: bytes, fault: Fault) -> None:
            if fault == "cut":
                self._send(200, data[: len(data) // 2])
            elif fault == "drip":
                self._head(200, len(data))
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(0.02)
            else:
                self._send(200, data)

        def _admitted(self) -> bool:
            if stub.key is None or self.headers.get("Authorization") == f"Bearer {stub.key}":
                return True
            self._send(401, b'{"error":"Unauthorized"}')
            return False

        def _send(self, status: int, data: bytes) -> None:
            self._head(status, len(data))
            self.wfile.write(data)

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0.2")
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, TimeoutError):
                return  # a client that has left

        def log_message(self, *_: Any) -> None:
            return

    return Handler


def _spoiled(answer: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """The answer with the fault in it."""
    if fault == "renamed":
        meta = {name.replace("spec_", "speculation_"): value for name, value in answer["meta_info"].items()}
        return {**answer, "meta_info": meta}
    if fault == "big":
        return {**answer, "text": " " * 50_000}
    if fault == "bare":
        return {"meta_info": answer["meta_info"]}
    if fault == "other prompt":
        if "meta_info" in answer:
            meta = {**answer["meta_info"], "prompt_tokens": answer["meta_info"]["prompt_tokens"] + 1}
            return {**answer, "meta_info": meta}
        choice = answer["choices"][0]
        return {**answer, "choices": [{**choice, "prompt_token_ids": [1, *choice["prompt_token_ids"]]}]}
    if fault == "abort":
        meta = {**answer["meta_info"], "finish_reason": {"type": "abort", "message": "out of memory"}}
        return {**answer, "meta_info": meta}
    return answer
