"""Digests of pieces, whoever looks at the bytes meanwhile."""

import numpy as np

from rl_agent.weights.format.checksums import piece_digests


def test_the_digests_are_the_same_whether_somebody_looks_or_not():
    content = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8).data
    seen = []
    looked = piece_digests(content, 2**20, threads=2, inspect=lambda at, part: seen.append((at, len(part))))
    assert looked == piece_digests(content, 2**20, threads=2)
    assert sum(length for _, length in seen) == len(content)
