"""A failure of this machine is not told to the agent as the page's fault."""

import base64

import pytest

from rl_agent.env.web.tab import Tabs
from rl_agent.errors import EnvironmentFailure


class LiveBrowser:
    has_died = False


async def test_a_screenshot_on_a_full_disk_is_the_environments_failure(tmp_path, monkeypatch):
    tabs = Tabs(LiveBrowser(), allowed=(), own_hosts=(), timeouts=(1.0, 1.0))
    pictured = []

    async def captured():
        pictured.append(1)
        return base64.b64encode(b"a picture").decode()

    monkeypatch.setattr(tabs, "_captured", captured)
    full = tmp_path / "missing" / "1.png"
    with pytest.raises(EnvironmentFailure, match=r"its screenshot .*1\.png cannot be kept: No such file"):
        await tabs.picture(full)
    assert len(pictured) == 1
    assert await tabs.picture(tmp_path / "1.png") == b"a picture"
    assert (tmp_path / "1.png").read_bytes() == b"a picture"
