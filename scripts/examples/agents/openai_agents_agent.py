"""An agent of OpenAI's Agents SDK with a handoff: it reads the task, works, and prints its answer.

pip install openai-agents        # in an environment of its own
"""

import json
import sys

from agents import Agent, Runner, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


task = json.load(sys.stdin)
calculator = Agent("Calculator", handoff_description="Adds numbers.", model="policy", tools=[add])
agent = Agent("Teacher", instructions="Answer with the number.", model="policy", handoffs=[calculator])
print(Runner.run_sync(agent, task["prompt"]).final_output)
