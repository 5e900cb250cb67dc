"""Adds the route of `packed` to a vLLM server. Runs inside vLLM's API processes.

vLLM adds the class as a middleware (`--middleware`), which reaches every API process; the class adds the
route to the application as it starts, behind vLLM's own check of the API key. A response is asked for without
text and with the sampled tokens' logprobs alone, flat, so that the process makes no object for a token.
`vllm_scheduler` lets the engine's process hand over as many tokens together as are sent together.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rl_agent.engine.packed import PATH, REQUEST, PackedRequest, pack
from rl_agent.engine.shapes import UNREADABLE
from rl_agent.engine.vllm_scheduler import INTERVAL

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import RequestOutput

ROUTE = "rl_agent.engine.vllm_route.PackedRoute"
"""The value of vLLM's `--middleware`."""
WHOLE_INTERVAL = 64
"""The tokens that the engine's process hands over together of a response that is sent whole."""


class PackedRoute:
    """A middleware that only adds the route; requests pass through it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            _add_route(scope["app"])
        await self._app(scope, receive, send)


def _add_route(app: Any) -> None:
    from fastapi import HTTPException, Request
    from fastapi.responses import Response, StreamingResponse
    from vllm.entrypoints.serve.utils.api_utils import with_cancellation
    from vllm.inputs import tokens_input

    async def packed_tokens(request: Request) -> Response:
        try:
            call = REQUEST.decode(await request.body())
        except UNREADABLE as error:
            raise HTTPException(400, str(error)) from error
        response: Response = await answer(call, request)
        return response

    @with_cancellation
    async def answer(call: PackedRequest, request: Request) -> Response:
        engine = request.app.state.engine_client
        outputs = engine.generate(tokens_input(call.prompt), _sampling(call), f"packed-{call.request_id}")
        first = await anext(outputs)  # what is wrong with the request is found before there is a status
        return StreamingResponse(_frames(first, outputs), media_type="application/octet-stream")

    async def has_packed_tokens() -> Response:
        return Response()

    app.add_api_route(PATH, packed_tokens, methods=["POST"], response_model=None)
    app.add_api_route(PATH, has_packed_tokens, methods=["GET"], response_model=None)


def _sampling(call: PackedRequest) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        **msgspec.structs.asdict(call.sampling) | {"stop_token_ids": list(call.sampling.stop_token_ids)},
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY if call.interval is None else RequestOutputKind.DELTA,
        extra_args={INTERVAL: call.interval or WHOLE_INTERVAL},
    )


async def _frames(first: "RequestOutput", outputs: "AsyncIterator[RequestOutput]") -> AsyncIterator[bytes]:
    yield _frame(first)
    async for output in outputs:
        yield _frame(output)


def _frame(output: "RequestOutput") -> bytes:
    (choice,) = output.outputs
    size, flat, stop = len(choice.token_ids), cast("FlatLogprobs", choice.logprobs), choice.stop_reason
    # vLLM before 0.32 gives the logprobs of all tokens beside none, when it aborts.
    logprobs = flat.logprobs[-size:] if size else ()
    return pack(choice.token_ids, logprobs, choice.finish_reason, stop if isinstance(stop, int) else None)
