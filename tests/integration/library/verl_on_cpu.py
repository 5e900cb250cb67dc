"""A platform for verl 0.9, which has none for CPUs: verl loads it by VERL_USE_EXTERNAL_MODULES.

Its actor's engine is that of CUDA (VERL_ENGINE_DEVICE); ranks take a resource of Ray named NPU, since verl
counts only that and GPU.
"""

import contextlib
import types

import torch
from verl.plugin.platform import PlatformBase, set_platform


class CpuModule(types.ModuleType):
    """torch.cpu; what a CPU has no use for does nothing."""

    def get_device_name(self):
        return "CPU"

    def mem_get_info(self):
        return 0, 1

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, nothing)


def nothing(*_, **__):
    return 0


class CpuPlatform(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = CpuModule("torch.cpu")
    set_device = synchronize = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return torch.device("cpu")

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "NPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def ray_resource_name(self):
        return "NPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


init_process_group = torch.distributed.init_process_group


def init_with_gloo(backend, **how):
    """Name gloo once: verl says cpu:gloo, and then its device's backend, which torch refuses as a second."""
    init_process_group("gloo", **how)


torch.distributed.init_process_group = init_with_gloo
set_platform(CpuPlatform())
