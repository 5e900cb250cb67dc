"""Counting GPUs and reading their memory, over recorded outputs of the vendors' tools."""

import pytest

from rl_agent.engine.gpus import GpuUse, count_gpus, holders, memory_in_use, smallest_memory_gib


def tools(**outputs):
    return lambda argv: outputs.get(argv[0].replace("-", "_"))


COUNTS = {
    "variable wins": ({"CUDA_VISIBLE_DEVICES": "0,3"}, {"nvidia_smi": "0\n1\n2\n3\n"}, 2),
    "empty variable hides all": ({"CUDA_VISIBLE_DEVICES": ""}, {"nvidia_smi": "0\n"}, 0),
    "minus one hides the rest": ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, {}, 1),
    "UUIDs": ({"CUDA_VISIBLE_DEVICES": "GPU-ab, GPU-cd"}, {}, 2),
    "nvidia": ({}, {"nvidia_smi": "0\n1\n"}, 2),
    "rocm": ({}, {"rocm_smi": "device,id\ncard0,0x1\ncard1,0x1\n"}, 2),
    "nothing": ({}, {}, 0),
}


@pytest.mark.parametrize(("environ", "outputs", "expected"), COUNTS.values(), ids=COUNTS)
def test_gpus_are_counted_in_order_of_authority(environ, outputs, expected):
    assert count_gpus(environ, tools(**outputs)) == expected


USES = "0, GPU-aa, 100, 81559\n1, GPU-bb, 20000, 40960\n2, GPU-cc, [N/A], [N/A]\n"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [GpuUse("0", 100, 81559), GpuUse("1", 20000, 40960)]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [GpuUse("0", 100, 81559)]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, [GpuUse("1", 20000, 40960)]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_only_visible_gpus_are_watched(environ, expected):
    assert memory_in_use(environ, tools(nvidia_smi=USES)) == expected


def test_the_smallest_visible_gpu_counts():
    assert smallest_memory_gib({}, tools(nvidia_smi=USES)) == 40.0
    assert smallest_memory_gib({"CUDA_VISIBLE_DEVICES": "0"}, tools(nvidia_smi=USES)) == 81559 / 1024
    assert smallest_memory_gib({}, tools()) == 0.0


def test_holders_name_process_and_size():
    lines = holders(tools(nvidia_smi="999999999, 4096\n"))
    assert lines == ["pid 999999999 (gone), 4096 MiB"]
