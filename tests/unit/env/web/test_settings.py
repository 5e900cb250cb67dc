"""The settings of the kind `web`, and what is said before a run starts."""

import importlib.util
import re

import pytest

from rl_agent.env.web import settings as module
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.env.web.settings import WebSettings, find_chromium
from rl_agent.errors import EnvironmentUnavailable
from rl_agent.types import Task


def web(**extra):
    return Task("t", "p", "web", "easy", extra=extra)


def site_folder(tmp_path, code):
    (tmp_path / "site.py").write_text(code)
    return {"sites": {"mine": str(tmp_path)}}


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"width": 0}, "width=0: expected"),
        ({"heigth": 768}, "heigth: there is no such setting"),
        ({"at_once": 5000}, "at_once=5000: expected"),
        ({"allowed_hosts": "example.org"}, "allowed_hosts='example.org': expected a valid tuple"),
        ({"allowed_hosts": ["http://example.org"]}, "allowed_hosts: 'http://example.org' is not a host"),
        ({"sites": {"a b": "."}}, "sites.a b"),
        ({"sites": {"miniwob": "."}}, "sites.miniwob"),
        ({"sites": {"mine": "/nowhere"}}, "there is no /nowhere/site.py"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(kwargs, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        WebEnvironment.check_settings(**kwargs)


def test_a_machine_without_a_browser_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentUnavailable, match="apt-get install chromium"):
        WebEnvironment.check_settings()
    with pytest.raises(LookupError, match="/no/chromium is not a program"):
        find_chromium(WebSettings(chromium="/no/chromium"))


def test_a_machine_without_playwright_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentUnavailable, match=r"pip install rl-agent\[web\]"):
        WebEnvironment.check_settings()


@pytest.mark.parametrize(
    ("extra", "wrong"),
    [
        ({}, "nothing to look at"),
        ({"miniwob": "click-test", "site": "shop"}, "miniwob and site"),
        ({"miniwob": "no-such"}, "use one of the 103 tasks"),
        ({"miniwob": "click-pie"}, "differs between attempts"),
        ({"miniwob": "../../../etc/passwd"}, "use one of the 103 tasks"),
        ({"miniwob": ["click-test"]}, "use one of the 103 tasks"),
        ({"miniwob": "click-test", "seed": -1}, "seed is not a whole number"),
        ({"miniwob": "click-test", "seed": True}, "seed is not a whole number"),
        ({"site": "nowhere"}, "site is 'nowhere'; there are shop"),
        ({"site": ["shop"]}, "site is ['shop']"),
        ({"site": "shop", "goal": "steal"}, "goal is 'steal'"),
        ({"url": "https://example.org"}, "not a page of env_config.kwargs.web.allowed_hosts=[]"),
        ({"url": "file:///etc/passwd"}, "not a page of"),
        ({"url": 3}, "not a page of"),
    ],
)
def test_a_task_that_cannot_be_shown_is_refused_in_words(extra, wrong):
    with pytest.raises(ValueError, match=re.escape(wrong)):
        WebEnvironment.check_task(web(**extra), {})


@pytest.mark.parametrize(
    ("extra", "kwargs"),
    [
        ({"miniwob": "click-test", "seed": 0}, {}),
        ({"site": "shop", "goal": "order"}, {}),
        ({"url": "https://www.example.org/a"}, {"allowed_hosts": ["*.example.org"]}),
    ],
)
def test_a_task_that_can_be_shown_is_taken(extra, kwargs):
    WebEnvironment.check_task(web(**extra), kwargs)


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("x = 1", "its class Site lacks respond and reward"),
        ("class Site:\n    def respond(self): ...", "its class Site lacks reward"),
    ],
)
def test_a_site_that_is_none_is_refused_by_its_file(tmp_path, code, wrong):
    with pytest.raises(ValueError, match=r"site\.py") as raised:
        WebEnvironment.check_task(web(site="mine"), site_folder(tmp_path, code))
    assert wrong in str(raised.value)
