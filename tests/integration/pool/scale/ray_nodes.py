"""A real Ray cluster of two nodes on this machine, one with a (pretended) GPU; it ends with its stdin.

RAY_PYTHON ray_nodes.py        prints its address, then answers lines of stdin with a line each

A driver that is told 127.0.0.1 goes to the host's own address instead: Ray replaces it
(services.resolve_ip_for_localhost), and tests contact loopback alone. 127.0.0.2 is as much loopback, and is
left as it is.
"""

import json
import os
import signal
import sys

import ray
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster

LOOPBACK = "127.0.0.2"
SMALL = {
    "node_ip_address": LOOPBACK,
    "include_dashboard": False,
    "object_store_memory": 80 * 2**20,
}


@ray.remote(num_cpus=0)
class Stranger:
    def ready(self):
        return "ready"


def answer(address, line):
    """Carry out a line: what a test does to actors, and asks of the cluster, as its administrator would."""
    verb, _, word = line.partition(" ")
    gcs = GcsClient(address=address)
    match verb:
        case "pid":
            return ray.get(ray.get_actor(word).__ray_call__.remote(lambda self: os.getpid()))
        case "kill":
            ray.kill(ray.get_actor(word))
        case "stranger":
            return ray.get(Stranger.options(name=word, lifetime="detached").remote().ready.remote())
        case "is_there":
            return ray.get(ray.get_actor(word).ready.remote())
        case "jobs":
            return str(gcs.get_all_job_info())
        case "requested":
            return (gcs.internal_kv_get(b"autoscaler_resource_request", None) or b"[]").decode()
        case "version":
            known = get_cluster_metadata(gcs)
            gcs.internal_kv_put(
                b"CLUSTER_METADATA", json.dumps({**known, "ray_version": word}).encode(), True, b"cluster"
            )
            return known["ray_version"]
    return "done"


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 0, **SMALL})
    try:
        cluster.add_node(num_cpus=4, num_gpus=1, **SMALL)
        cluster.wait_for_nodes()
        sys.stdout.write(f"cluster at {cluster.address}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            if not ray.is_initialized():
                ray.init(address=cluster.address, namespace="rl-agent", log_to_driver=False)
            sys.stdout.write(f"answer {json.dumps(answer(cluster.address, line.strip()))}\n")
            sys.stdout.flush()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
