"""Files of a run, as it writes them."""

import json

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_run(log_path, *records, spans=()):
    paths = RunPaths(log_path)
    for record in records:
        metrics.append(paths.metrics, record)
    paths.timeline.write_text(lines(*spans))
    return paths
