"""TRL beside libraries that are newer than it knows."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any


def import_trl(*extras: str) -> ModuleType:
    """TRL with these of its extras alone. Its trainers want `warnings_issued`, which models once had."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl
        from trl import import_utils

        # It asks an older transformers, whose answer was a bool, and an older vLLM: leave other extras out.
        for name, value in list(vars(import_utils).items()):
            if name.startswith("_") and name.endswith("_available") and not callable(value):
                setattr(import_utils, name, False)  # 0.24 asks once, 1.x each time
        if hasattr(import_utils, "_is_package_available"):
            import_utils._is_package_available = partial(
                _is_there, import_utils._is_package_available, extras
            )
    return trl


def _is_there(
    ask: Callable[..., Any], extras: Sequence[str], package: str, return_version: bool = False
) -> Any:
    if package in extras:
        return ask(package, return_version=return_version)
    return (False, "N/A") if return_version else False
