"""Lets vLLM's engine process hand over the tokens of a response in portions. Runs inside that process.

By default every token of every response is a message of its own to the API process: packed, with three arrays
for its logprob, sent, unpacked, accounted. That takes more of both processes' time than the sampling. A
request that names an `INTERVAL` gets its first token at once and then so many together; at its end, what is
left. A pause that keeps the requests ends only when all that wait are handed over, so that the tokens of old
weights have left before there are new ones. Only the hand-over is changed: what is sampled, and when, is
vLLM's.

vLLM takes the function as its scheduler's class (`--scheduler-cls`). Of the scheduler it uses
`update_from_output`, `finish_requests`, `has_requests`, `set_pause_state` and `requests`, which 0.26 to 0.32
have.
"""

from operator import attrgetter, is_
from typing import Any

INTERVAL = "rl_agent_interval"
"""The key of `SamplingParams.extra_args`; only requests whose text nobody reads may have it."""
SCHEDULER = "rl_agent.engine.vllm_scheduler.portioning_scheduler"
"""The value of vLLM's `--scheduler-cls`."""
_SAMPLED = ("request_id", "new_token_ids", "new_logprobs")


def portioning_scheduler(**arguments: Any) -> Any:
    """Return the scheduler that vLLM would use, with portions."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    is_async = arguments["vllm_config"].scheduler_config.async_scheduling
    kind = type("PortioningScheduler", (Portions, AsyncScheduler if is_async else Scheduler), {})
    return kind(**arguments)


class Portion:
    """The tokens of one response that wait for the rest of their portion."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._newest: Any = None
        """The logprobs of the newest output, as vLLM gives them."""

    def __len__(self) -> int:
        return len(self._token_ids)

    def take(self, output: Any) -> bool:
        """Add the tokens of an output; return whether the portion is complete."""
        new = output.new_token_ids
        self._token_ids += new
        self._newest = output.new_logprobs
        if output.new_logprobs is not None:
            logprobs = output.new_logprobs.logprobs
            # The sampled token's is the first; others are there if another request of the step wants them.
            self._logprobs += (logprobs.item(0),) if len(new) == 1 else logprobs[:, 0].tolist()
        return len(self._token_ids) >= self._interval

    def give(self, output: Any) -> None:
        """Let an output hold all tokens that wait; nobody reads the ranks of their logprobs."""
        import numpy as np

        output.new_token_ids, self._token_ids = self._token_ids, []
        if self._newest is not None:
            size = len(output.new_token_ids)
            output.new_logprobs = self._newest._replace(
                logprob_token_ids=np.array(output.new_token_ids, np.int32).reshape(size, 1),
                logprobs=np.array(self._logprobs, np.float32).reshape(size, 1),
                sampled_token_ranks=np.zeros(size, np.int32),
            )
            self._logprobs = []


class Portions:
    """A scheduler's outputs in portions; mixed into vLLM's scheduler."""

    requests: dict[str, Any]

    def __init__(self, **arguments: Any) -> None:
        from vllm.v1.engine import EngineCoreOutput

        super().__init__(**arguments)
        self._portions: dict[str, Portion | None] = {}
        """None: a request whose tokens are handed over one by one."""
        self._is_paused = False
        fields = EngineCoreOutput.__struct_fields__
        defaults = dict(zip(reversed(fields), reversed(EngineCoreOutput.__struct_defaults__), strict=False))
        others = [name for name in fields if name not in _SAMPLED]
        self._others = attrgetter(*others)
        self._nothing = [defaults[name] for name in others]

    def update_from_output(self, *arguments: Any) -> dict[int, Any]:
        """Return the outputs of a step, less those whose portion is not complete.

        `arguments`: what was scheduled for the step, and what the model made of it.
        """
        batches: dict[int, Any] = super().update_from_output(*arguments)  # type: ignore[misc]
        for batch in batches.values():
            batch.outputs = [output for output in batch.outputs if self._is_due(output)]
        if self._is_paused and not arguments[0].total_num_scheduled_tokens:  # no step is under way any more
            self._hand_over(batches)
        return batches

    def set_pause_state(self, state: Any) -> None:
        """Take note of a pause in which the requests stay."""
        super().set_pause_state(state)  # type: ignore[misc]
        self._is_paused = state.name == "PAUSED_ALL"

    def has_requests(self) -> bool:
        """Return whether there has to be another step: in a pause an empty one, while tokens wait."""
        return bool(super().has_requests()) or (self._is_paused and any(self._portions.values()))  # type: ignore[misc]

    def _hand_over(self, batches: dict[int, Any]) -> None:
        """Add an output for each portion, complete or not."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

        for request_id, portion in self._portions.items():
            if portion:
                output = EngineCoreOutput(request_id, [])
                portion.give(output)
                client = self.requests[request_id].client_index
                batches.setdefault(client, EngineCoreOutputs()).outputs.append(output)

    def finish_requests(self, *arguments: Any) -> Any:
        """Forget the portions of requests that were aborted."""
        finished = super().finish_requests(*arguments)  # type: ignore[misc]
        for request_id in self._portions.keys() - self.requests.keys():
            del self._portions[request_id]
        return finished

    def _is_due(self, output: Any) -> bool:
        request_id, is_last = output.request_id, output.finish_reason is not None
        if request_id not in self._portions:
            if not is_last:
                self._portions[request_id] = self._begin(request_id)
            return True
        portion = self._portions.pop(request_id) if is_last else self._portions[request_id]
        if portion is None:
            return True
        is_complete = portion.take(output)
        is_due = is_complete or not all(map(is_, self._others(output), self._nothing))
        if is_due:
            portion.give(output)
        return is_due

    def _begin(self, request_id: str) -> Portion | None:
        params = self.requests[request_id].sampling_params
        interval = (params.extra_args or {}).get(INTERVAL, 1) if params else 1
        return Portion(interval) if interval > 1 else None
