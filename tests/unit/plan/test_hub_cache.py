"""Models of the hub are read from one place and downloaded to one."""

from rl_agent.plan.environment import shared_environment
from tests.unit.plan.conftest import download, own_hub


def test_models_lie_below_a_data_path_that_can_be_written(place):
    assert place.cache() == own_hub(place)
    assert place.variables()["HF_HOME"] == str(own_hub(place).parent)


def test_a_read_only_data_path_is_read_from_if_it_holds_the_model(place):
    download(own_hub(place))
    place.read_only = (place.data,)
    variables = place.variables()
    assert place.cache() == own_hub(place)
    assert variables["HF_HUB_CACHE"] == str(own_hub(place))
    assert variables["HF_HUB_OFFLINE"] == "1"  # a newer revision could not be written there
    assert "HF_HOME" not in variables


def test_a_read_only_data_path_that_lacks_the_model_is_not_downloaded_into(place):
    own_hub(place).mkdir(parents=True)
    place.read_only = (place.data,)
    assert place.cache() == place.home / ".cache" / "huggingface" / "hub"
    assert not {"HF_HOME", "HF_HUB_CACHE"} & set(place.variables())
    assert any("not writable" in note for note in shared_environment(place.config, place.environ()).notes)


def test_with_a_read_only_home_models_are_downloaded_below_the_log_path(place):
    place.read_only = (place.data, place.home)
    assert place.cache() == place.log / "cache" / "huggingface" / "hub"
    assert place.variables()["HF_HOME"] == str(place.log / "cache" / "huggingface")


def test_a_read_only_home_is_read_from_if_it_holds_the_model(place):
    home_hub = place.home / ".cache" / "huggingface" / "hub"
    download(home_hub)
    place.read_only = (place.data, place.home)
    assert place.cache() == home_hub
    assert place.variables()["HF_HUB_OFFLINE"] == "1"


def test_the_users_cache_wins(place):
    download(own_hub(place))
    assert place.cache(HF_HOME="/x").as_posix() == "/x/hub"
    assert place.cache(HF_HUB_CACHE="/y", HF_HOME="/x").as_posix() == "/y"
    assert not {"HF_HOME", "HF_HUB_CACHE"} & set(place.variables(HF_HOME="/x"))
