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
        for name, value in list(vars(import_utils).items()):
            if name.startswith("_") and name.endswith("_available") and not callable(value):
                setattr(import_utils, name, False)  # 0.24 asks once, 1.x each time
        if hasattr(import_utils, "_is_package_available"):
            import_utils._is_package_available = _is_absent
    return trl


def _is_absent(package: str, return_version: bool = False) -> bool | tuple[bool, str]:
    return (False, "N/A") if return_version else False
