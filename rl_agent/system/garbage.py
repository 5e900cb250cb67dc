"""Python's search for cycles, for processes that make almost none."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Let Python look for cycles rarely.

    By default it walks through all open episodes or requests so often that it cost the collector a sixth of
    its CPU time, and the manager a quarter.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
