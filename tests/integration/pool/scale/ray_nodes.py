"""A real Ray cluster of two nodes on this machine, one with a (pretended) GPU; it ends with its stdin.

RAY_PYTHON ray_nodes.py        prints its address

A driver that is told 127.0.0.1 goes to the host's own address instead: Ray replaces it
(services.resolve_ip_for_localhost), and tests contact loopback alone. 127.0.0.2 is as much loopback, and is
left as it is.
"""

import sys

from ray.cluster_utils import Cluster

LOOPBACK = "127.0.0.2"
SMALL = {
    "node_ip_address": LOOPBACK,
    "include_dashboard": False,
    "object_store_memory": 80 * 2**20,
}

if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 0, **SMALL})
    cluster.add_node(num_cpus=4, num_gpus=1, **SMALL)
    cluster.wait_for_nodes()
    sys.stdout.write(f"cluster at {cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()
