"""Checks that all values of a version are finite, while its bytes pass by for their digests.

Of a float's bits, read as an integer, those of infinity and of every NaN are the largest: as a signed integer
among the positive ones, as an unsigned one among the negative ones. So two maxima tell, at memory speed, for
types that numpy has no arithmetic of, too.
"""

from collections.abc import Iterable

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.format.manifest import TensorEntry, runs_of

_INFINITE = {
    "F64": (8, 0x7FF0_0000_0000_0000),
    "C64": (4, 0x7F80_0000),
    "F32": (4, 0x7F80_0000),
    "F16": (2, 0x7C00),
    "BF16": (2, 0x7F80),
    "F8_E5M2": (1, 0x7C),
    "F8_E4M3": (1, 0x7F),
}
"""Bytes of a value, and the bits of the first one that is not finite. Integers have none."""


class FiniteCheck:
    """Checks one full blob for NaN and infinity. Thread-safe."""

    def __init__(self, tensors: Iterable[TensorEntry]) -> None:
        self._tensors = tuple(tensors)
        runs = runs_of(self._tensors, lambda tensor: tensor.dtype)
        self._runs = [run for run in runs if run[0] in _INFINITE]  # the zeros between tensors are finite

    def inspect(self, start: int, content: memoryview) -> None:
        """Inspect bytes of the blob from `start`, a multiple of 8.

        Raises WeightsError that names the tensor.
        """
        end = start + len(content)
        for dtype, run_start, run_end in self._runs:
            first, last = max(run_start, start), min(run_end, end)
            if first >= last:
                continue
            width, infinite = _INFINITE[dtype]
            part = content[first - start : last - start]
            signed, unsigned = np.frombuffer(part, f"<i{width}"), np.frombuffer(part, f"<u{width}")
            negative = infinite | 1 << (8 * width - 1)
            if signed.max() < infinite and unsigned.max() < negative:
                continue
            place = int(np.flatnonzero((signed >= infinite) | (unsigned >= negative))[0]) * width + first
            name = next(tensor.name for tensor in self._tensors if tensor.start <= place < tensor.end)
            raise WeightsError(
                f"{name}: holds NaN or infinity; the version is not published. Lower trainer.learning_rate,"
                " or set weights.check_finite=false to publish it as it is"
            )
