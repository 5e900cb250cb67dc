"""Agents that know nothing of training: programs that use OpenAI's own client as its manual has it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.docs.documented_blocks import blocks
from tests.unit.docs.test_train_your_agent import PAGE

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": NUMBERS}}
TOOL_LOOP = """
import json, os, sys
import openai

task = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
messages = [{"role": "system", "content": "You add."}, {"role": "user", "content": task["prompt"]}]
streams = "--stream" in sys.argv
for _ in range(5):
    asked = dict(model="gpt-5", messages=messages, tools=[ADD], temperature=0.3)
    if streams:
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**asked).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        total = str(numbers["a"] + numbers["b"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": total})
print("thinking aloud", file=sys.stderr)
print(message.content)
print(float(message.content.strip() == task["answer"]))
""".replace("[ADD]", repr([ADD]))
RESPONSES_LOOP = """
import json, sys
import openai

task = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
items = [{"role": "user", "content": task["prompt"]}]
for _ in range(5):
    asked = dict(model="gpt-5", instructions="You add.", input=items, tools=[ADD], store=False)
    if "--stream" in sys.argv:
        with client.responses.stream(**asked) as stream:
            response = stream.get_final_response()
    else:
        response = client.responses.create(**asked)
    items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    for call in calls:
        numbers = json.loads(call.arguments)
        total = str(numbers["a"] + numbers["b"])
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": total})
print(float(response.output_text.strip() == task["answer"]))
""".replace("[ADD]", repr([{"type": "function", "strict": False} | ADD["function"]]))


def program(folder: Path, text: str) -> str:
    """Write a program; returns the command that runs it."""
    path = folder / "my_agent.py"
    path.write_text(text)
    return f"{sys.executable} {path}"


@contextmanager
def page_client(folder: Path, address: str, *changes: tuple[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The agent of docs/how-to/train-your-agent.md that runs already, as a process of its own."""
    text = blocks(PAGE, "python")[1]
    for old, new in (("127.0.0.1:8100", address), *changes):
        assert old in text
        text = text.replace(old, new)
    (folder / "client.py").write_text(text)
    with subprocess.Popen([sys.executable, folder / "client.py"]) as process:
        try:
            yield process
        finally:
            process.kill()
