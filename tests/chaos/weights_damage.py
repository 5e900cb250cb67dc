"""Damage to a file of weights, and faults of a link that they travel over."""

from collections.abc import Callable
from pathlib import Path

from tests.support.weight_links import Fault, cut_at, flip_at, flip_often, in_parts, once_after


def damage(path: Path, point: float) -> None:
    """Change a byte of a file."""
    with path.open("r+b") as file:
        at = min(int(point * path.stat().st_size), path.stat().st_size - 1)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


def link_fault(fault: str, at: int, seed: int, kill: Callable[[], None]) -> Fault | None:
    return {
        "cut once": cut_at(at),
        "cut for good": lambda _, content, before: content if before + len(content) <= at else None,
        "byte flipped": flip_at(at),
        "bytes flipped all the time": flip_often(seed, share=0.3),
        "old version damaged": None,
        "silent": lambda _, content, before: content if before + len(content) <= at else b"",
        "trickle": in_parts(at, part_bytes=1, pause_s=0.2),
        "slow": in_parts(at, part_bytes=2**14, pause_s=0.015),
        "too slow": in_parts(at, part_bytes=256, pause_s=0.1),
        "sender killed": once_after(at, kill),
        "sender stopped": once_after(at, kill),
    }[fault]
