"""Names under which vLLM's command line and `/collective_rpc` know the code in `vllm_worker`."""

WORKER_EXTENSION = "rl_agent.weights.load.vllm_worker.WeightsWorker"
"""Value of vLLM's `--worker-extension-cls`; the routes that call it need VLLM_SERVER_DEV_MODE=1 as well."""

LOAD = "rl_agent_load_weights"
READ_HELD = "rl_agent_held"
BEGIN_ADAPTERS = "rl_agent_begin_adapters"
CLEAR_ADAPTER = "rl_agent_clear_adapter"

SLOTS = "RL_AGENT_ADAPTER_SLOTS"
"""Environment variable of a server: the number of runs whose adapters it keeps; one where it is not set."""
SLOT_HEADER = "X-Adapter-Slot"
"""Header of a request for another run's adapter than the first one's."""

AS_STARTED = -2
"""Held by a worker that has loaded nothing since it was started."""
