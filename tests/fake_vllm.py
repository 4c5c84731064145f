"""A small HTTP server that speaks the routes of vLLM and of chat servers, and misbehaves when told to.

`python -m tests.fake_vllm --model NAME --host HOST --port PORT` serves; flags that vLLM would take are accepted.
"""

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: What goes wrong, in the order of requests for completions: a status, or one of the words below.
Trouble = list[Any]


class FakeVllm(ThreadingHTTPServer):
    """Answers completions with tokens that only the prompt and the seed decide."""

    daemon_threads = True

    def __init__(self, model: str, *, port: int = 0, context_tokens: int = 1024, end: int = 1, root: str = "") -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        self.root = root or model
        self.context_tokens = context_tokens
        self.end = end
        self.trouble: Trouble = []
        self.asked: list[tuple[str, Any]] = []
        self.weights = ""
        self.paused = False
        self.most = 0
        self.now = 0
        self.latency_s = 0.0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Clients may leave."""


class Handler(BaseHTTPRequestHandler):
    server: FakeVllm

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        model = {"id": self.server.model, "object": "model", "max_model_len": self.server.context_tokens}
        answers: dict[str, Any] = {
            "/health": "",
            "/v1/models": {"object": "list", "data": [model | {"root": self.server.root}]},
            "/chat/v1/models": {"object": "list", "data": [model]},
        }
        if self.path in answers:
            self.reply(200, answers[self.path])
        else:
            self.reply(404, {"error": {"message": "no such route"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        with self.server.lock:
            self.server.asked.append((self.path, body))
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            self.answer(body)
        finally:
            with self.server.lock:
                self.server.now -= 1

    def answer(self, body: Any) -> None:
        routes: dict[str, Callable[[Any], Any]] = {
            "/v1/completions": self.completion,
            "/chat/v1/chat/completions": self.chat,
            "/collective_rpc": self.reload,
            "/reset_prefix_cache": lambda _: {},
            "/pause?mode=wait": lambda _: self.pause(True),
            "/resume": lambda _: self.pause(False),
            "/sleep?level=1": lambda _: {},
            "/wake_up?tags=weights": lambda _: {},
            "/wake_up?tags=kv_cache": lambda _: {},
        }
        if self.path not in routes:
            self.reply(404, {"error": {"message": "no such route"}})
            return
        completing = self.path.endswith("completions")
        time.sleep(self.server.latency_s)
        if completing and body["model"] != self.server.model:
            self.reply(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
            return
        trouble = self.server.trouble.pop(0) if completing and self.server.trouble else None
        if isinstance(trouble, int):
            said = "maximum context length is 5 tokens" if trouble == 400 else "as ordered"
            self.reply(trouble, {"error": {"message": said}}, **{"retry-after": "0"})
        elif trouble == "hang up":
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
            self.close_connection = True
        elif trouble == "die":
            os._exit(9)
        else:
            self.reply(200, spoilt(routes[self.path](body), trouble))

    def completion(self, body: Any) -> Any:
        drawn = random.Random(f"{body['seed']}{body['prompt']}{self.server.weights}")
        ids = [drawn.randrange(10, 200) for _ in range(drawn.randrange(1, 12))] + [self.server.end]
        ids = ids[: body["max_tokens"]]
        choice = {
            "text": "",
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": [-float(token) / 100 for token in ids]},
            "finish_reason": "stop" if ids[-1] == self.server.end else "length",
        }
        return {"id": "1", "object": "text_completion", "choices": [choice]}

    def chat(self, body: Any) -> Any:
        said = f"{body['messages'][-1]['content']} {body.get('seed')}"
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}

    def reload(self, body: Any) -> Any:
        assert body["method"] == "reload_weights"
        self.server.weights = body["kwargs"]["weights_path"]
        return {"results": [None]}

    def pause(self, paused: bool) -> Any:
        self.server.paused = paused
        return {"status": "ok"}

    def reply(self, status: int, document: Any, **headers: str) -> None:
        data = json.dumps(document).encode() if document != "" else b""
        self.send_response(status)
        for name, value in (headers | {"content-type": "application/json", "content-length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def spoilt(answer: Any, trouble: Any) -> Any:
    """Make an answer one that no engine should give."""
    if trouble is None:
        return answer
    choice = answer["choices"][0]
    if trouble == "no choice":
        return {"id": "1", "choices": []}
    if trouble == "no log-probabilities":
        choice["logprobs"] = None
    if trouble == "one log-probability too few":
        choice["logprobs"]["token_logprobs"].pop()
    if trouble == "log-probability of NaN":
        choice["logprobs"]["token_logprobs"][0] = float("nan")
    if trouble == "log-probability of nothing":
        choice["logprobs"]["token_logprobs"][0] = None
    if trouble == "no tokens":
        del choice["token_ids"]
    if trouble == "another prompt":
        choice["prompt_token_ids"] = [1, 2, 3]
    if trouble == "aborted":
        choice["finish_reason"] = "abort"
    return answer


@contextmanager
def serving(model: str, **options: Any) -> Iterator[FakeVllm]:
    """Serve on a free port for the length of a block."""
    with FakeVllm(model, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--port", type=int)
    parser.add_argument("--trouble", default="[]")
    parser.add_argument("--once", type=Path)
    known, flags = parser.parse_known_args()
    assert {"--generation-config", "--logprobs-mode"} <= set(flags)
    server = FakeVllm(known.served_model_name, port=known.port)
    server.weights = known.model
    # Only the first of the servers that are started has this trouble.
    if known.once is None or not known.once.exists():
        server.trouble = json.loads(known.trouble)
        if known.once is not None:
            known.once.touch()
    server.serve_forever()


if __name__ == "__main__":
    main()
