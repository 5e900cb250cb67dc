"""Sections of the configuration that refuse what does not go together."""

import pytest
from pydantic import ValidationError

from rl_agent.config.plan import PageConfig

OPEN = {"port": "auto", "host": "127.0.0.1", "token_file": None, "tls_certificate": None, "tls_key": None}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"host": "0.0.0.0"}, "token_file, tls_certificate and tls_key"),
        ({"host": "0.0.0.0", "token_file": "/t"}, "token_file, tls_certificate and tls_key"),
        ({"tls_certificate": "/c"}, "go together"),
        ({"port": 0}, "1"),
        ({"port": "on"}, "auto"),
    ],
)
def test_a_page_that_others_reach_needs_a_token_and_tls(given, named):
    with pytest.raises(ValidationError, match=named):
        PageConfig.model_validate({**OPEN, "allowed_hosts": [], **given})


def test_off_means_off_although_yaml_reads_it_as_false():
    assert PageConfig.model_validate({**OPEN, "allowed_hosts": [], "port": False}).port == "off"
