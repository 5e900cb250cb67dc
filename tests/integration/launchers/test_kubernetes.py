"""The manifests of scripts/kubernetes, offline: how they fit each other, this project and Kubernetes."""

import json
import os
import shlex
import shutil
import subprocess

import jsonschema_rs
import pytest
import yaml

from rl_agent.cli import join_pool
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.schemas import WantedAnswer
from rl_agent.pool.settings import load_settings
from rl_agent.worker.main import END_S
from tests.integration.launchers.tools import interpreter_with

FOLDER = PROJECT_ROOT / "scripts" / "kubernetes"
FILES = [path for path in sorted(FOLDER.glob("*/*.yaml")) if path.name != "kustomization.yaml"]
KEDA = json.loads((PROJECT_ROOT / "tests/integration/launchers/keda.schema.json").read_text())
TEXT = {"RL_AGENT_POOL_TOKEN": "a token of at least sixteen bytes"}


def objects():
    return {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for path in FILES
        for manifest in yaml.safe_load_all(path.read_text())
    }


def pod_of(workload):
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_every_file_is_in_a_kustomization_that_names_it():
    named = [
        str((path.parent / name).resolve())
        for path in FOLDER.glob("*/kustomization.yaml")
        for name in yaml.safe_load(path.read_text())["resources"]
    ]
    assert sorted(named) == sorted([*(str(path) for path in FILES), str(FOLDER / "pool")])


def test_keda_takes_its_objects():
    validator = jsonschema_rs.validator_for(KEDA)
    manifests = [manifest for manifest in objects().values() if manifest["apiVersion"].startswith("keda.sh/")]
    assert {manifest["kind"] for manifest in manifests} == {"ScaledObject", "TriggerAuthentication"}
    for manifest in manifests:
        assert [error.message for error in validator.iter_errors(manifest)] == []


def test_the_scaler_reads_a_number_that_the_managers_service_answers():
    known = objects()
    scaled = known["ScaledObject", "engine"]
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in known
    (trigger,) = scaled["spec"]["triggers"]
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in known
    host, port = trigger["metadata"]["url"].removeprefix("http://").removesuffix("/wanted").split(":")
    name, namespace, _ = host.split(".")
    assert ("Namespace", namespace) in known
    assert int(port) in [manifest["port"] for manifest in known["Service", name]["spec"]["ports"]]
    field, kind = trigger["metadata"]["valueLocation"].split(".")
    assert field in WantedAnswer.model_fields
    _, container = pod_of(known["Deployment", "manager"])
    (wanted,) = load_settings(container["args"], TEXT).scale.kinds
    assert wanted.name == kind
    assert wanted.max_engines == scaled["spec"]["maxReplicaCount"]


def test_an_engines_drain_fits_its_grace_period_and_it_has_shared_memory():
    spec, container = pod_of(objects()["Deployment", "engine"])
    options = join_pool.parser().parse_args(container["args"])
    assert options.drain_s + END_S < spec["terminationGracePeriodSeconds"]
    assert options.kind == "spot"
    assert options.manager == ["http://manager:5000"]
    mounts = {manifest["mountPath"]: manifest["name"] for manifest in container["volumeMounts"]}
    (shm,) = (manifest for manifest in spec["volumes"] if manifest["name"] == mounts["/dev/shm"])
    assert shm["emptyDir"]["medium"] == "Memory"


def test_selectors_find_the_pods_they_are_for_and_claims_exist():
    known = objects()
    for (kind, _), manifest in known.items():
        if kind not in ("Deployment", "Job"):
            continue
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        selector = manifest["spec"].get("selector", {}).get("matchLabels", {})
        assert selector.items() <= labels.items()
        for volume in pod_of(manifest)[0]["volumes"]:
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in known
    assert (
        known["Service", "manager"]["spec"]["selector"]
        == (known["Deployment", "manager"]["spec"]["selector"]["matchLabels"])
    )


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_trainer_s_command_is_one_that_run_sh_gets_whole(tmp_path, is_resumed):
    """The Job's script runs with run.sh replaced by what prints its words."""
    _, container = pod_of(objects()["Job", "trainer"])
    (script,) = container["args"]
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.sh").write_text('printf "%s\\n" "$@"\n')
    if is_resumed:
        (tmp_path / "exp1" / "runs" / "latest").mkdir(parents=True)
    script = script.replace("/runs/exp1", str(tmp_path / "exp1"))
    environ = {"PATH": os.environ["PATH"], "NUM_NODES": "2", "MODEL": "m", "JOB_COMPLETION_INDEX": "1"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert ("--resume" in words) is is_resumed
    assert {"trainer=grpo", "--worker", "model_config.base_model=m"} <= set(words)
    (kinds,) = (word.removeprefix("pool.") for word in words if word.startswith("pool.scale.kinds="))
    assert load_settings([kinds], {}).scale.kinds[0].name == "spot"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders it, where there is one")
@pytest.mark.parametrize("which", ["pool", "run"])
def test_kubectl_renders_it(which):
    words = ["kubectl", "kustomize", str(FOLDER / which)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    manifests = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in yaml.safe_load_all(done.stdout)
    }
    assert (("Deployment", "manager") in manifests) is (which == "pool")
    assert (("Job", "trainer") in manifests) is (which == "run")
    for manifest in manifests.values():
        if manifest["kind"] in ("Deployment", "Job"):
            assert pod_of(manifest)[1]["image"].startswith("registry.example/"), shlex.join(words)
    if which == "run":
        selector = manifests["Service", "manager"]["spec"]["selector"]
        assert selector["batch.kubernetes.io/job-completion-index"] == "0"


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_the_schemas_of_kubernetes_1_37_take_every_object():
    python = interpreter_with("kubernetes-validate==1.37.0")
    native = [str(path) for path in FILES if "keda.sh/" not in path.read_text()]
    words = [str(python.with_name("kubernetes-validate")), "--strict", "--kubernetes-version", "1.37.0"]
    done = subprocess.run([*words, *native], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == 7
