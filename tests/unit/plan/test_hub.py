"""A hub model is read or downloaded, or one line says why neither works."""

import http.server
import json
import threading

import pytest

from rl_agent.chat.tokenizer_files import model_folder
from rl_agent.errors import ConfigError
from rl_agent.plan.hub import FoundModel, cached_snapshot, find_model
from tests.unit.plan.conftest import MODEL, download, own_hub


def test_a_users_cache_that_can_neither_serve_nor_take_a_model_is_one_line(place):
    place.read_only = (place.home,)
    with pytest.raises(ConfigError, match=r"base_model=org/model.*cannot be written.*HF_HOME") as raised:
        find_model(MODEL, place.cache(HF_HOME=str(place.home)), {})
    assert "\n" not in str(raised.value)


def test_a_download_that_was_broken_off_does_not_count_as_there(place):
    folder = download(own_hub(place), weights=False)
    assert cached_snapshot(MODEL, own_hub(place)) is None
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "model-1-of-2.safetensors").write_bytes(b"w")
    assert cached_snapshot(MODEL, own_hub(place)) is None
    (folder / "model-2-of-2.safetensors").write_bytes(b"w")
    assert cached_snapshot(MODEL, own_hub(place)) == folder


def test_a_tokenizer_in_the_cache_is_read_without_asking_the_network(tmp_path, monkeypatch):
    requests = []

    def snapshot_download(name, *, allow_patterns, local_files_only=False):
        requests.append(local_files_only)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert model_folder(MODEL) == tmp_path
    assert requests == [True]


def test_a_tokenizer_that_is_not_in_the_cache_is_fetched(tmp_path, monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot_download(name, *, allow_patterns, local_files_only=False):
        if local_files_only:
            raise LocalEntryNotFoundError("not there")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert model_folder(MODEL) == tmp_path


@pytest.fixture
def hub(monkeypatch):
    """Answers for the hub with `told`, and keeps what it was asked."""

    class Hub(http.server.BaseHTTPRequestHandler):
        told: bytes = b"{}"

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(Hub.told)))
            self.end_headers()
            self.wfile.write(Hub.told)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hub.environ = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}"}
    yield Hub
    server.shutdown()
    server.server_close()


WHOLE = ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors"]


def tell(hub, *files, **fields):
    hub.told = json.dumps({"siblings": [{"rfilename": file} for file in files], **fields}).encode()


def test_the_hubs_facts_of_a_model_are_known_before_the_download(hub, tmp_path):
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
    tell(hub, *WHOLE, config=config)
    facts = find_model(MODEL, tmp_path, hub.environ)
    assert (facts.name, facts.folder, facts.config, facts.files) == (MODEL, None, config, frozenset(WHOLE))


@pytest.mark.parametrize("told", [b"", b"[]", b"{}", b'{"config": 3, "siblings": 4}', b'{"siblings": [5]}'])
def test_a_mirror_that_tells_nothing_is_believed_to_have_the_model(hub, tmp_path, told):
    hub.told = told
    facts = find_model(MODEL, tmp_path, hub.environ)
    assert (facts.config, facts.size_bytes) == (None, 0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], r"is an adapter, .* merge it into its base"),
        (["model.gguf"], "has no config.json, so it is not a model"),
        (["config.json", "tokenizer.json", "flax.msgpack"], "has no weights"),
        (["config.json", "model.safetensors", "tokenizer.model"], "has no tokenizer.json"),
    ],
)
def test_models_that_no_engine_can_serve_are_refused_before_the_download(hub, tmp_path, files, message):
    tell(hub, *files, config={"model_type": "llama"})
    with pytest.raises(ConfigError, match=f"^model_config.base_model=org/model: .*{message}") as raised:
        find_model(MODEL, tmp_path, hub.environ)
    assert "\n" not in str(raised.value)


def test_a_folder_of_an_adapter_is_named_as_one(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is an adapter, .* merge it into its base"):
        find_model(str(tmp_path), tmp_path, {})


def test_a_cached_model_without_a_tokenizer_is_refused_when_offline(place):
    folder = download(own_hub(place))
    assert find_model(MODEL, own_hub(place), {}).folder == folder
    with pytest.raises(ConfigError, match=r"has no tokenizer.json, and HF_HUB_OFFLINE is set"):
        find_model(MODEL, own_hub(place), {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize(
    ("sizes", "size_bytes"),
    [
        ({"model-1-of-2.safetensors": 30, "model-2-of-2.safetensors": 20, "pytorch_model.bin": 51}, 50),
        ({"model.safetensors": 50, "consolidated.safetensors": 51}, 50),
        ({"pytorch_model.bin": 50}, 50),
    ],
    ids=["Zephyr", "Ministral", "one format"],
)
def test_weights_in_several_formats_count_once(tmp_path, sizes, size_bytes):
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert FoundModel("org/model", tmp_path, {}, frozenset(sizes)).size_bytes == size_bytes
