"""A real Ray cluster of two nodes on this machine, one with a (pretended) GPU; it ends with its stdin.

RAY_PYTHON ray_nodes.py        prints its address
"""

import sys

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "num_gpus": 0, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=4, num_gpus=1)
    cluster.wait_for_nodes()
    sys.stdout.write(f"cluster at {cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()
