"""Defines an environment: reset, step, close.

    create ─► reset(task, seed) ─► step(action) ─► … ─► step(action).done ─► close
                  ▲                                                  │
                  └───────────── reset for the next episode ◄────────┘

- One instance runs one episode at a time, and its caller awaits each call before the next. Hundreds of
  instances live side by side on one event loop: what blocks or computes for more than a millisecond belongs
  in a thread (`asyncio.to_thread`) or in `rl_agent.env.verifier`.
- The caller bounds each call and cancels it at its deadline; the instance is then closed, not used again.
- `close` may be called at any time after the constructor, also twice, and does not raise.
- An exception in a call ends that attempt only. The episode is tried again from the start, up to
  `env_config.attempts`, with every error recorded; an `EnvironmentRefusal` says that this would not help.
- Where instances live is the configuration's affair: in this process, in workers (`env_config.workers`) or on
  other machines (`env_config.servers`). They share nothing but what their class shares in one process.
"""

from typing import Protocol, runtime_checkable

from rl_agent.types import Observation, StepResult, Task


@runtime_checkable
class Environment(Protocol):
    """One live environment; made with `env_config.kwargs[kind]` as keyword arguments.

    A class may also have more, all used on the class:

    - `check_task(task)`, or `check_task(task, kwargs)` with `env_config.kwargs[kind]`, raises ValueError that
      says what a task lacks to run here; every task is checked before a run starts.
    - `check_settings(**kwargs)` raises ValueError for a wrong value, and EnvironmentUnavailable with what is
      to be installed if this machine cannot run the kind; called before a run starts.
    - `tools(task)` returns the functions that an agent may call, as the list of JSON schemas that chat
      templates take (`[{"type": "function", "function": {"name": …, "parameters": …}}, …]`); it may be
      `async`, and is given those of `env_config.kwargs[kind]` that it has parameters for. Where the agent
      acts by tool calls, `step` is given `{"name": …, "arguments": {…}}` as JSON (`chat.tool_calls.call_of`
      reads it), with arguments that fit the schema, or the text of a response that calls nothing.
    - `is_cooperative = True`, not a method: it never blocks the event loop for more than a millisecond and
      cannot end its process, so it may share the collector's where `env_config.workers` is not set;
    - `async close_shared()` closes what instances share (processes, connections); it is called once after
      the last instance is closed.
    """

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin an episode; equal tasks and seeds begin in equal states."""
        ...

    async def step(self, action: str) -> StepResult:
        """Take one action; an invalid one is answered with an observation, not with an exception.

        It is empty where the token limit cut the response.
        """
        ...

    async def close(self) -> None:
        """Release all resources of the instance."""
        ...
