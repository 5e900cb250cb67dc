"""A real vLLM whose model calls tools."""

import pytest

from tests.integration.conftest import running_server
from tests.integration.pool.openai.calling_model import make_calling_model


@pytest.fixture(scope="package")
def calling_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calling")
    model = make_calling_model(folder / "model")
    words = ("+engine.extra_args.enable-auto-tool-choice=true", "+engine.extra_args.tool-call-parser=hermes")
    with running_server(model, folder / "log", *words, max_num_seqs=8) as plan:
        yield plan.config.engine.base_url
