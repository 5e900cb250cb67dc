"""An engine that costs nothing: answers vLLM's routes at once, and starts in a few hundredths of a second.

    python -S -E benchmarks/rollout/instant_engine.py PORT ROOT

For measuring what surrounds the engine; with the standard library alone, because a start that imports a web
framework would weigh more than what is measured. ROOT is what `/v1/models` says was loaded.
"""

import json
import socket
import sys
import threading
from pathlib import Path

RESPONSE = "0123456"
TOKENS = [*range(18, 25), 2]
"""RESPONSE and the end of a turn in the tokenizer of `tests.support.tiny_chat`; a test compares them."""


def completion() -> bytes:
    logprobs = [-0.5] * len(TOKENS)
    names = [f"token_id:{token}" for token in TOKENS]
    choice = {
        "index": 0,
        "text": RESPONSE,
        "token_ids": TOKENS,
        "logprobs": {
            "text_offset": list(range(len(TOKENS))),
            "token_logprobs": logprobs,
            "tokens": names,
            "top_logprobs": [{name: value} for name, value in zip(names, logprobs, strict=True)],
        },
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_logprobs": None,
    }
    return json.dumps({"id": "c", "object": "text_completion", "model": "m", "choices": [choice]}).encode()


def chat_completion() -> bytes:
    tokens = [{"token": f"token_id:{token}", "logprob": -0.5} for token in TOKENS]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": RESPONSE},
        "token_ids": TOKENS,
        "logprobs": {"content": tokens},
        "finish_reason": "stop",
    }
    answer = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
    return json.dumps(answer | {"prompt_token_ids": [10, 11, 12]}).encode()


def answers(root: str) -> dict[str, bytes]:
    card = {"id": "m", "root": root, "object": "model", "max_model_len": 32768}
    return {
        "/v1/completions": completion(),
        "/v1/chat/completions": chat_completion(),
        "/v1/models": json.dumps({"object": "list", "data": [card]}).encode(),
        "/metrics": b'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n',
        "/health": b"",
    }


def converse(connection: socket.socket, bodies: dict[str, bytes]) -> None:
    """Answer the requests of one connection until it closes."""
    stream = connection.makefile("rb")
    while line := stream.readline():
        length = 0
        while (header := stream.readline()) not in (b"\r\n", b""):
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        stream.read(length)
        path = line.split()[1].decode()
        body = bodies.get(path, b"")
        status = b"200 OK" if path in bodies else b"404 Not Found"
        kind = b"text/plain" if path == "/metrics" else b"application/json"
        head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
        connection.sendall(head + body)


def main() -> None:
    port, root = sys.argv[1:]
    bodies = answers(root)
    server = socket.create_server(("127.0.0.1", int(port)), backlog=256)
    while True:
        connection, _ = server.accept()
        threading.Thread(target=converse, args=(connection, bodies), daemon=True).start()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # without `site` nothing else names the project
    from rl_agent.system.terminal import run_script

    run_script(main)
