"""What a web page can make a browser send to a manager is refused; what ordinary clients send is not."""

from itertools import product

from tests.support.pool_setup import item, manager

BATCH = {"requests": [item(0, 10)]}
PAGES = [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}]
ROUTES = [
    ("GET", "/status"),
    ("GET", "/metrics"),
    ("GET", "/runs/run/samples?after=0"),
    ("GET", "/engines/a/tunnel"),
    ("POST", "/runs/run/requests"),
    ("POST", "/engines/a/drain"),
    ("POST", "/v1/completions"),
    ("DELETE", "/runs/run"),
]


async def test_a_web_page_gets_nothing_and_does_nothing():
    async with manager() as pool:
        await pool.call("POST", "/runs/run/requests", BATCH)
        for headers, (method, path) in product(PAGES, ROUTES):
            body = BATCH if method == "POST" else None
            status, answer = await pool.call(method, path, body, headers=headers)
            assert status == 403, (headers, method, path, answer)
            assert "run" not in str(answer)
        assert set(pool.runtime.runs.by_name) == {"run"} and pool.runtime.pool.open_requests() == 1


KINDS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]


async def test_a_body_that_a_page_may_send_without_asking_is_refused():
    async with manager() as pool:
        for kind, path in product(KINDS, ("/runs/run/requests", "/model", "/engines", "/v1/completions")):
            async with pool.session.post(
                pool.url + path, data=b"{}", headers={"Content-Type": kind}
            ) as answer:
                assert answer.status == 415, (kind, path)
                assert "Content-Type: application/json" in await answer.text()
        assert not pool.runtime.runs.by_name


async def test_allowed_hosts_reach_a_manager_and_with_a_token_any_name_does(tmp_path):
    async with manager("allowed_hosts=[Pool.example.org]") as pool:
        assert (await pool.call("GET", "/status", headers={"Host": "pool.example.org:5000"}))[0] == 200
    (tmp_path / "token").write_text("the-token\n")
    (tmp_path / "token").chmod(0o600)
    right = {"Authorization": "Bearer the-token", "Host": "behind-a-proxy.example"}
    async with manager(f"token_file={tmp_path / 'token'}") as pool:
        assert (await pool.call("GET", "/status", headers=right))[0] == 200
