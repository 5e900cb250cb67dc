"""A LangGraph agent as its manual has it: it reads the task, works, and prints its answer.

pip install langgraph langchain-openai        # in an environment of its own
"""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


model = ChatOpenAI(model="policy").bind_tools([add])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([add]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")

task = json.load(sys.stdin)
result = graph.compile().invoke({"messages": [("user", task["prompt"])]})
print(result["messages"][-1].content)
