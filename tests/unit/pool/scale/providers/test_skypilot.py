"""The provider `skypilot` over a pretended SkyPilot; tests/integration/launchers has a real one."""

from types import SimpleNamespace as Some

import pytest

from rl_agent.pool.scale.providers.skypilot import SkypilotProvider
from rl_agent.pool.scale.records import EngineKind, MachineState, ProviderError, RentedMachine

SPOT = EngineKind("spot", 2.5, 0, 4, 60.0)


class NoCluster(ValueError):
    pass


class PretendedSky:
    """SkyPilot's API: every call returns a request, `get` its result."""

    exceptions = Some(ClusterDoesNotExist=NoCluster)
    StatusRefreshMode = Some(AUTO="auto")

    def __init__(self):
        self.clusters, self.requests, self.launched, self.cancelled = {}, [], [], []
        self.task = Some(update_envs=self.keep, update_secrets=self.keep, set_resources_override=self.keep)
        self.kept = {}
        self.Task = Some(from_yaml=lambda _: self.task)
        self.outcome = "SUCCEEDED"

    def keep(self, values):
        self.kept |= values

    def launch(self, task, cluster_name):
        self.launched.append(cluster_name)
        self.requests.append(Some(name="sky.launch", status=self.outcome, request_id="r1", of=cluster_name))
        return "r1"

    def api_status(self, request_ids=None, cluster_name=None):
        return [one for one in self.requests if cluster_name in (None, one.of)]

    def api_cancel(self, request_ids):
        self.cancelled += request_ids

    def status(self, names, refresh):
        return [one for name, one in self.clusters.items() if names is None or name in names]

    def down(self, name):
        return name

    def get(self, request):
        if request == "f-9":
            raise NoCluster
        return request


def cluster(name, status):
    return {
        "name": name,
        "status": Some(value=status),
        "last_creation_yaml": "envs:\n  RL_AGENT_KIND: spot\n",
    }


@pytest.fixture
def sky():
    return PretendedSky()


@pytest.fixture
def provider(sky):
    settings = {"manager": "http://m:5000", "fleet": "f", "task": "task.yaml", "call_timeout_s": 5.0}
    settings |= {"kind_resources": {"spot": {"use_spot": True}}, "envs": {"A": "b"}}
    return SkypilotProvider(settings | {"secrets_from_environment": []}, sky)


async def test_a_machine_is_launched_once_with_its_name_in_its_task(provider, sky):
    sky.outcome = "SUCCEEDED"
    await provider.start("f-1", SPOT)
    sky.clusters["f-1"] = cluster("f-1", "UP")
    await provider.start("f-1", SPOT)
    assert sky.launched == ["f-1"]
    assert sky.kept["RL_AGENT_NAME"] == "f-1"
    assert sky.kept["use_spot"] is True


async def test_a_launch_under_way_is_not_asked_for_again_and_is_cancelled_by_a_stop(provider, sky):
    sky.requests.append(Some(name="sky.launch", status="RUNNING", request_id="r7", of="f-9"))
    await provider.start("f-9", SPOT)
    assert sky.launched == []
    await provider.stop("f-9")
    assert sky.cancelled == ["r7"]


async def test_a_launch_that_fails_early_is_an_error(provider, sky):
    sky.outcome = "FAILED"
    with pytest.raises(ProviderError, match="could not launch f-1"):
        await provider.start("f-1", SPOT)


async def test_clusters_of_this_fleet_are_its_machines(provider, sky):
    for name, status in (("f-1", "UP"), ("f-2", "INIT"), ("f-3", "STOPPED"), ("other", "UP")):
        sky.clusters[name] = cluster(name, status)
    assert await provider.machines() == [
        RentedMachine("f-1", "spot", MachineState.RUNNING),
        RentedMachine("f-2", "spot", MachineState.PENDING),
        RentedMachine("f-3", "spot", MachineState.STOPPING),
    ]
