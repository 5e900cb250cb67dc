"""Frames of tokens come out as they went in, however the bytes are cut up."""

import hashlib
import math
import struct

import msgspec
import pytest

from rl_agent.engine.packed import (
    MAX_FRAME_BYTES,
    REQUEST,
    ImageContent,
    PackedFrames,
    check_contents,
    pack,
    packed_request,
    read_missing,
    unpack,
)

STATED = {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_frames_come_out_as_they_went_in_however_they_are_cut(cut):
    logprobs = [float32(-0.1), float32(-1e-30), -math.inf]
    sent = pack([151_935], [float32(-11.73)], None, None) + pack([0, 1, 2], logprobs, "stop", 2)
    sent += pack([], [], "abort", None)
    frames = PackedFrames()
    pieces = [sent[at : at + cut] for at in range(0, len(sent), cut)]

    first, second, third = [unpack(frame) for piece in pieces for frame in frames.feed(piece)]

    assert (first.token_ids, first.finish_reason, first.stop_reason) == ((151_935,), None, None)
    assert first.logprobs.values == (float32(-11.73),)
    assert (second.token_ids, second.logprobs.values) == ((0, 1, 2), tuple(logprobs))
    assert (second.finish_reason, second.stop_reason) == ("stop", 2)
    assert (third.token_ids, third.finish_reason) == ((), "abort")


def test_half_a_frame_is_none():
    frames = PackedFrames()
    assert frames.feed(pack([1, 2], [-1.0, -2.0], "stop", None)[:-1]) == []


def test_a_frame_beyond_all_reason_is_refused_before_it_comes():
    with pytest.raises(ValueError, match="a frame of more than"):
        PackedFrames().feed(struct.pack("<IIIi", MAX_FRAME_BYTES, 0, 0, -1))


def test_a_token_without_a_logprob_is_not_packed():
    with pytest.raises(ValueError, match="2 tokens with 1 logprobs"):
        pack([1, 2], [-1.0], None, None)


def test_a_request_is_read_as_it_was_written():
    sampling = STATED | {"max_tokens": 8, "seed": 4, "stop_token_ids": [14], "ignore_eos": True}
    request = REQUEST.decode(packed_request([1, 2, 3], sampling, "r", 8))
    assert (request.prompt, request.request_id, request.interval) == ([1, 2, 3], "r", 8)
    assert (request.sampling.stop_token_ids, request.sampling.seed) == ((14,), 4)
    assert (request.sampling.max_tokens, request.sampling.min_tokens) == (8, 0)


def test_images_of_a_request_come_whole_and_the_prompt_with_them_back():
    images = [ImageContent("a" * 64, b"\x89PNG"), ImageContent("b" * 64)]
    request = packed_request([1, 2], STATED | {"max_tokens": 8}, "r", None, images)
    assert REQUEST.decode(request).images == tuple(images)
    frames = PackedFrames().feed(pack([7], [-1.0], None, None, [1, 5, 5, 2]) + pack([8], [-2.0], "stop", 8))
    first, second = map(unpack, frames)
    assert (first.prompt_token_ids, first.token_ids, first.finish_reason) == ((1, 5, 5, 2), (7,), None)
    assert (second.prompt_token_ids, second.token_ids, second.finish_reason) == (None, (8,), "stop")


def test_an_image_with_another_content_than_its_name_says_is_refused():
    content = b"pixels"
    good = ImageContent(hashlib.sha256(content).hexdigest(), content)
    check_contents([good, ImageContent("a" * 64)])
    with pytest.raises(ValueError, match="has another content"):
        check_contents([good, ImageContent("a" * 64, content)])
    with pytest.raises(msgspec.ValidationError):
        REQUEST.decode(
            packed_request([1], STATED | {"max_tokens": 8}, "r", None, [ImageContent("../etc", content)])
        )


def test_an_answer_that_names_no_missing_images_has_none():
    assert read_missing(b'{"missing": ["aa"]}') == {"aa"}
    assert read_missing(b"<html>") == read_missing(b'{"error": 1}') == frozenset()


@pytest.mark.parametrize(
    "change",
    [{"n": 2}, {"extra_args": {}}, {"max_tokens": 0}, {"temperature": "hot"}, {"stop_token_ids": [-1]}],
)
def test_what_the_route_does_not_know_is_refused(change):
    with pytest.raises(msgspec.ValidationError):
        REQUEST.decode(packed_request([1], STATED | {"max_tokens": 8} | change, "r", None))


def test_what_the_models_files_might_fill_in_must_be_stated():
    with pytest.raises(msgspec.ValidationError, match="min_p"):
        REQUEST.decode(
            packed_request([1], {k: v for k, v in STATED.items() if k != "min_p"} | {"max_tokens": 8}, "r", 1)
        )
