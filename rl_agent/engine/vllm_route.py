"""Adds the routes of `packed` to a vLLM server. Runs inside vLLM's API processes.

vLLM adds the class as a middleware (`--middleware`), which reaches every API process. As the application
starts, the class makes one of its own for the route that tokens come by, with all middlewares of vLLM's, such
as its check of the API key, but those for browsers and for metrics of HTTP: these and FastAPI are a third of
what a short response costs the process. A response is asked for without text and with the sampled tokens'
logprobs alone, flat, and these are taken a portion at a time, so that the process runs no line for a token.
`vllm_scheduler` lets the engine's process hand over as many tokens together as are sent together.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rl_agent.engine.packed import (
    MISSING,
    MODELS_OWN,
    PATH,
    RENDER_PATH,
    REQUEST,
    ImageContent,
    MissingImages,
    PackedRequest,
    RenderedChat,
    check_contents,
    pack,
)
from rl_agent.engine.shapes import UNREADABLE
from rl_agent.engine.vllm_scheduler import INTERVAL
from rl_agent.weights.load.vllm_adapter import choose_slot, use_adapters

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import RequestOutput

ROUTE = "rl_agent.engine.vllm_route.PackedRoute"
"""The value of vLLM's `--middleware`."""
LEFT_OUT = ("PackedRoute", "CORSMiddleware", "PrometheusInstrumentatorMiddleware")
"""Middlewares that the route for tokens is without; none of them refuses a request."""
WHOLE_INTERVAL = 64
"""The tokens that the engine's process hands over together of a response that is sent whole."""
MAX_IMAGE_BYTES = 2**30
"""Bytes of images that an API process keeps: ten thousand screenshots of 100 kB."""


class ImageCache:
    """The files of images by their digests; those that were not used for longest are dropped first."""

    def __init__(self, max_bytes: int = MAX_IMAGE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._files: OrderedDict[str, bytes] = OrderedDict()

    def take(self, images: Sequence[ImageContent]) -> tuple[list[bytes], list[str]]:
        """Keep what was sent; return the files of the images, and the digests of those that are missing."""
        sent = {image.digest: image.content for image in images if image.content is not None}
        digests = dict.fromkeys(image.digest for image in images)
        known = {digest: sent.get(digest) or self._files.get(digest) for digest in digests}
        files = {digest: content for digest, content in known.items() if content is not None}
        for digest, content in files.items():
            self._keep(digest, content)
        missing = [digest for digest in digests if digest not in files]
        return [files[image.digest] for image in images if image.digest in files], missing

    def _keep(self, digest: str, content: bytes) -> None:
        if digest not in self._files:
            self._bytes += len(content)
        self._files[digest] = content
        self._files.move_to_end(digest)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._files.popitem(last=False)[1])


class PackedRoute:
    """A middleware that answers requests for packed tokens; others pass through it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._own: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await use_adapters(scope["app"].state.engine_client, os.environ)
            self._own = _add_routes(scope["app"])
        elif scope["type"] == "http":
            choose_slot(scope["headers"])
        is_own = scope["type"] == "http" and scope["path"] == scope.get("root_path", "") + PATH
        await (self._own if is_own else self._app)(scope, receive, send)


def _add_routes(app: Any) -> Any:
    """Add the routes; returns an application that answers `PATH` in place of vLLM's."""
    from fastapi import HTTPException, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from starlette.applications import Starlette
    from starlette.routing import Route
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.utils.api_utils import with_cancellation
    from vllm.envs import enable_envs_cache
    from vllm.inputs import tokens_input

    enable_envs_cache()  # as the engine's process does; vLLM reads variables for every request and output
    take_portions_at_once()
    cache = ImageCache()

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
        prompt: Any = tokens_input(call.prompt)
        if call.images:
            try:
                await asyncio.to_thread(check_contents, call.images)
                files, missing = cache.take(call.images)
                if missing:
                    body = msgspec.json.encode(MissingImages(tuple(missing)))
                    return Response(body, MISSING, media_type="application/json")
                prompt = await _prompt_with_images(engine, call, files)
            except ValueError as error:
                raise HTTPException(400, str(error)) from error
        outputs = engine.generate(prompt, _sampling(call), f"packed-{call.request_id}")
        first = await anext(outputs)  # what is wrong with the request is found before there is a status
        seen = first.prompt_token_ids if call.images else ()
        if first.finished:
            async for _ in outputs:  # else vLLM takes the response for one that its client has left
                pass
            return Response(_frame(first, seen), media_type="application/octet-stream")
        return StreamingResponse(_frames(first, seen, outputs), media_type="application/octet-stream")

    async def has_packed_tokens(_request: Request) -> Response:
        return Response()

    async def rendered_chat(chat: ChatCompletionRequest, request: Request) -> Response:
        if (serving := getattr(request.app.state, "serving_render", None)) is None:
            raise HTTPException(404, "this vLLM renders no chats")
        rendered = await _rendering_unexpanded(serving).render_chat_request(chat)
        if isinstance(rendered, ErrorResponse):
            return JSONResponse(rendered.model_dump(), rendered.error.code)
        sampling = {name: getattr(rendered.sampling_params, name) for name in MODELS_OWN}
        body = msgspec.json.encode(RenderedChat(rendered.token_ids, sampling))
        return Response(body, media_type="application/json")

    app.add_api_route(PATH, packed_tokens, methods=["POST"], response_model=None)  # for /openapi.json
    app.add_api_route(RENDER_PATH, rendered_chat, methods=["POST"], response_model=None)
    own = Starlette(
        routes=[Route(PATH, packed_tokens, methods=["POST"]), Route(PATH, has_packed_tokens)],
        middleware=[each for each in app.user_middleware if each.cls.__name__ not in LEFT_OUT],
        exception_handlers=app.exception_handlers,
    )
    own.state = app.state
    return own


def take_portions_at_once() -> None:
    """Let vLLM take the logprobs of a portion together; it takes one after the other, in 1 us each.

    vLLM 0.26 to 0.32 take them by one method, for all requests; another release goes on in its own way.
    """
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.engine.logprobs import LogprobsProcessor

    processor: Any = LogprobsProcessor
    one_by_one = getattr(processor, "_update_sample_logprobs", None)
    if one_by_one is None:
        return

    def update(self: Any, new: Any) -> None:
        flat = self.logprobs
        if self.num_logprobs != 0 or self.tokenizer is not None or not isinstance(flat, FlatLogprobs):
            one_by_one(self, new)
            return
        start, values = len(flat.logprobs), new.logprobs[:, 0].tolist()
        flat.start_indices.extend(range(start, start + len(values)))
        flat.end_indices.extend(range(start + 1, start + len(values) + 1))
        flat.token_ids.extend(new.logprob_token_ids[:, 0].tolist())
        flat.logprobs.extend(values)
        flat.ranks.extend(new.sampled_token_ranks.tolist())
        flat.decoded_tokens.extend([None] * len(values))
        self.cumulative_logprob += sum(values)

    processor._update_sample_logprobs = update


def _rendering_unexpanded(serving: Any) -> Any:
    """Return vLLM's rendering of chats without its last step, which needs the images and puts them in."""
    from vllm.inputs import tokens_input

    async def as_written(prompt: Any, _arrival_time: float, **_: Any) -> Any:
        return tokens_input(prompt["prompt_token_ids"])

    serving = copy(serving)
    serving.online_renderer = copy(serving.online_renderer)
    serving.online_renderer.renderer = copy(serving.online_renderer.renderer)
    serving.online_renderer.renderer.process_for_engine_async = as_written
    return serving


def _sampling(call: PackedRequest) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        **msgspec.structs.asdict(call.sampling) | {"stop_token_ids": list(call.sampling.stop_token_ids)},
        logprobs=0,
        flat_logprobs=True,
        skip_clone=True,  # it is this request's alone
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY if call.interval is None else RequestOutputKind.DELTA,
        extra_args={INTERVAL: call.interval or WHOLE_INTERVAL},
    )


async def _prompt_with_images(engine: Any, call: PackedRequest, files: Sequence[bytes]) -> Any:
    """Let vLLM make of tokens and files what it makes of a chat's. Raises ValueError for what it refuses."""
    from vllm.inputs import TokensPrompt
    from vllm.multimodal.media import ImageMediaIO

    def decoded() -> list[Any]:
        reader = ImageMediaIO()
        return [reader.load_bytes(content) for content in files]

    prompt = TokensPrompt(prompt_token_ids=call.prompt)
    prompt["multi_modal_data"] = {"image": await asyncio.to_thread(decoded)}
    prompt["multi_modal_uuids"] = {"image": [image.digest for image in call.images]}
    (rendered,) = await engine.renderer.render_cmpl_async([prompt])
    return rendered


async def _frames(
    first: "RequestOutput", prompt: Sequence[int], outputs: "AsyncIterator[RequestOutput]"
) -> AsyncIterator[bytes]:
    yield _frame(first, prompt)
    async for output in outputs:
        yield _frame(output)


def _frame(output: "RequestOutput", prompt: Sequence[int] = ()) -> bytes:
    (choice,) = output.outputs
    size, flat, stop = len(choice.token_ids), cast("FlatLogprobs", choice.logprobs), choice.stop_reason
    # vLLM before 0.32 gives the logprobs of all tokens beside none, when it aborts.
    logprobs = flat.logprobs[-size:] if size else ()
    return pack(
        choice.token_ids, logprobs, choice.finish_reason, stop if isinstance(stop, int) else None, prompt
    )
