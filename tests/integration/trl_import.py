"""TRL beside libraries that are newer than it knows."""

import warnings
from types import ModuleType


def import_trl() -> ModuleType:
    """TRL without its extras. Its trainers want a model's `warnings_issued`, which transformers once set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl
        from trl import import_utils

        # It asks an older transformers, whose answer was a bool, and an older vLLM: leave all extras out.
        for name in vars(import_utils):
            if name.startswith("_") and name.endswith("_available"):
                setattr(import_utils, name, False)
    return trl
