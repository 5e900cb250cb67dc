"""Request bodies are typed and bounded before a handler sees them."""

import io
import json
import math

from rl_agent.pool.api.bodies import CALL_BYTES
from tests.support.pool_setup import item, manager

WRONG = [
    ("eos_token_ids", 2),
    ("eos_token_ids", [-1]),
    ("stop_token_ids", 7),
    ("stop", [3]),
    ("min_tokens", "4"),
    ("seed", "x"),
    ("ignore_eos", "yes"),
    ("include_stop_str_in_output", []),
    ("structured_outputs", {"json": json.loads("[" * 50 + "]" * 50)}),
    ("other", [[0] * 100] * 1000),
]


async def test_a_sampling_parameter_of_another_type_is_refused_by_name():
    async with manager() as pool:
        for name, value in WRONG:
            wrong = item(0, 10) | {"sampling": {name: value}}
            status, answer = await pool.call("POST", "/runs/run/requests", {"requests": [item(1, 10), wrong]})
            assert status == 422, (name, value)
            assert answer["error"]["message"].startswith(f"requests.1.sampling: Value error, {name}: ")
            status, answer = await pool.call("POST", "/v1/completions", {"prompt": [1], name: value})
            assert status == 400 and answer["error"]["message"].startswith(f"{name}: "), (name, value)
        assert not pool.state.requests


UNTYPED = [
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"prompt_token_ids": [True]}, "prompt_token_ids.0"),
    ({"prompt_token_ids": [-1] * 100_000}, "prompt_token_ids.0"),
    ({"min_weight_version": 2**60}, "min_weight_version"),
    ({"id": "a\x9b31m"}, "id"),
    ({"group": "\u202egroup"}, "group"),
    ({"timeout_s": 1e300}, "timeout_s"),
    ({"unknown": 1}, "unknown"),
]


async def test_a_request_is_typed_strictly():
    async with manager() as pool:
        for change, where in UNTYPED:
            body = {"requests": [item(0, 10) | change]}
            status, answer = await pool.call("POST", "/runs/run/requests", body)
            assert status == 422 and answer["error"]["message"].startswith(f"requests.0.{where}: "), change
            assert len(answer["error"]["message"]) < 300


MESSAGES = [
    ("/runs/run/requests", {"requests": []}, "requests"),
    ("/runs/run/requests", {"requests": [{}], "more": 1}, "more"),
    ("/engines", {"name": "e", "has_worker": True, "price_per_hour": math.inf}, "price_per_hour"),
    ("/engines", {"name": "e\x1b[2J", "has_worker": True}, "name"),
    ("/engines", {"name": "e", "has_worker": True, "weights": {"weight_version": 2**80}}, "weights"),
    ("/model", {"model": "m", "weight_version": 2**63}, "weight_version"),
    ("/v1/completions", {"prompt": [1], "timeout_s": 10**400}, "timeout_s"),
    ("/v1/completions", {"prompt": [1], "group": "a\nb"}, "group"),
    ("/v1/completions", {"prompt": [1, "x"]}, "prompt"),
    ("/v1/completions", {"prompt": [1], "n": 0}, "n"),
    ("/v1/completions", ["prompt"], "object"),
    ("/engines", {"name": "x", "url": "http://example.org:80"}, "example.org"),
    ("/engines", {"name": "x", "url": "ftp://127.0.0.1:80"}, "url"),
    ("/engines", {"name": "x", "url": "http://user:secret@127.0.0.1:80"}, "url"),
    ("/engines", {"name": "x", "url": "http://127.0.0.1:80", "nmae": 1}, "nmae"),
    ("/model", {"model": "m", "weight_version": -1}, "weight_version"),
]


async def test_every_message_is_typed_and_bounded():
    async with manager() as pool:
        for path, body, where in MESSAGES:
            status, answer = await pool.call("POST", path, body)
            expected = 400 if path == "/v1/completions" else 422
            assert status == expected and where in answer["error"]["message"], (body, answer)
        status, answer = await pool.call("POST", "/engines/none/beat", {})
        assert status == 404 and answer["error"]["message"]
        assert not pool.state.engines and not pool.state.requests


async def test_words_of_a_worker_are_one_line_of_the_log(caplog):
    caplog.set_level("INFO")
    async with manager() as pool:
        await pool.call("POST", "/engines", {"name": "e", "has_worker": True})
        await pool.call("POST", "/engines/e/leave", {"reason": "gone\n12:00 all is well\x1b[2J\x9b"})
    [line] = [record.getMessage() for record in caplog.records if "gone" in record.getMessage()]
    assert line.isprintable() and "all is well" in line


NOT_OURS = [
    "http://169.254.169.254:80",
    "http://[::ffff:169.254.169.254]:80",
    "http://0.0.0.0:80",
    "http://224.0.0.1:80",
    "http://192.0.2.7:80",
    "http://2130706433:80",
    "http://localhost:80",
    "http://127.0.0.1@169.254.169.254:80",
    "http://169.254.169.254:80#@127.0.0.1:80",
    "file:///etc/passwd",
    "http://127.0.0.1:0",
    "http://127.0.0.1:99999",
    "http://\x80:80",
]


async def test_registration_with_a_foreign_address_is_refused():
    async with manager() as pool:
        for url in NOT_OURS:
            status, answer = await pool.call("POST", "/engines", {"name": "e", "url": url})
            assert status in (403, 422) and answer["error"]["message"], (url, answer)
        assert not pool.state.engines


HURTING = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"requests": ' + b'[{"a":' * 5000 + b"1",
    "NaN": b'{"requests": [{"id": "a", "prompt_token_ids": [NaN], "max_tokens": 1}]}',
    "infinite": b'{"requests": [{"id": "a", "prompt_token_ids": [1], "max_tokens": 1e400}]}',
    "no UTF-8": b'{"requests": [{"id": "\xff", "prompt_token_ids": [1], "max_tokens": 1}]}',
    "half a surrogate": b'{"requests": [{"id": "\\ud800", "prompt_token_ids": [1], "max_tokens": 1}]}',
    "too long": b'{"requests": "' + b"a" * (CALL_BYTES + 1) + b'"}',
}


async def test_bodies_made_to_hurt_are_refused():
    async with manager() as pool:
        url, headers = pool.url + "/runs/r/requests", {"Content-Type": "application/json"}
        for name, body in HURTING.items():
            async with pool.session.post(url, data=io.BytesIO(body), headers=headers) as answer:
                assert answer.status == (413 if name == "too long" else 422), (name, await answer.text())
        assert pool.runtime.pool.open_requests() == 0
