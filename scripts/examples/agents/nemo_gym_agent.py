"""Plays a task at a NeMo Gym resources server and prints its reward; or makes tasks of a data set's rows.

pip install openai requests        # in an environment of its own; the server has another
"""

import json
import select
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import openai
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

MESSAGE = {"type": "message", "role": "assistant", "status": "completed"}
RESPONSE = {"id": "r", "object": "response", "created_at": 0, "model": "policy"}
RESPONSE |= {"parallel_tool_calls": False, "tool_choice": "auto"}
server, *files = sys.argv[1:]


def messages_of(row):
    asked = row["responses_create_params"]["input"]
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)


def play(row, gym):
    messages, tools, output = messages_of(row), row["responses_create_params"].get("tools", []), []
    given = {"tools": [{"type": "function", "function": tool} for tool in tools]} if tools else {}
    gym.post(f"{server}/seed_session", json=row, timeout=60).raise_for_status()
    while not messages or messages[-1]["role"] != "assistant":
        reply = openai.OpenAI().chat.completions.create(model="policy", messages=messages, **given)
        said = reply.choices[0].message.model_dump(exclude_none=True)
        messages.append(said)
        content = [{"type": "output_text", "text": said.get("content") or "", "annotations": []}]
        output.append(MESSAGE | {"id": f"m{len(output)}", "content": content})
        for call in said.get("tool_calls", ()):
            of_call, function = {"call_id": call["id"]}, call["function"]
            arguments = json.loads(function["arguments"])
            result = gym.post(f"{server}/{function['name']}", json=arguments, timeout=60).text
            output.append({"type": "function_call"} | of_call | function)
            output.append({"type": "function_call_output", "output": result} | of_call)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    response = RESPONSE | {"tools": tools, "output": output}
    verdict = gym.post(f"{server}/verify", json=row | {"response": response}, timeout=600)
    verdict.raise_for_status()
    return verdict.json()


if files:
    for number, row in enumerate(map(json.loads, Path(files[0]).read_text().splitlines())):
        task = {"task_id": f"{Path(files[0]).stem}-{number}", "prompt": messages_of(row)[-1]["content"]}
        print(json.dumps(task | {"row": row}))
    sys.exit()
place, patience = urlsplit(server), Retry(connect=7, backoff_factor=0.5)  # a minute for its start
with requests.Session() as gym:  # whose cookies are the session there
    gym.mount(server, HTTPAdapter(max_retries=patience))
    gym.get(f"{server}/health", timeout=60)
    with socket.create_connection((place.hostname, place.port or 80)) as line:
        verdict = play(json.load(sys.stdin)["row"], gym)
        has_ended = select.select([line], [], [], 0)[0]
if has_ended or verdict.get("mask_sample"):
    sys.exit(verdict.get("failure_reason") or f"{server} ended in mid-episode, and its state with it")
print(verdict["reward"])
