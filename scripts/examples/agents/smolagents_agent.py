"""A smolagents agent that calls tools: it reads the task, works, and prints its answer.

pip install 'smolagents[openai]'        # in an environment of its own
"""

import json
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Return the sum of two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


task = json.load(sys.stdin)
agent = ToolCallingAgent(tools=[add], model=OpenAIModel("policy"), verbosity_level=0, max_steps=4)
print(agent.run(task["prompt"]))
