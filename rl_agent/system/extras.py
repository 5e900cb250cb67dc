"""Names the extra of the package that installs a library which is missing."""

import re
from collections.abc import Iterable
from importlib import metadata

_REQUIREMENT = re.compile(r"([\w.-]+).*;.*\bextra == ['\"](\w+)['\"]")


def missing_library(error: ModuleNotFoundError, requirements: Iterable[str] | None = None) -> str | None:
    """Return which extra has the library that could not be imported; None if none has.

    `requirements` are those of the installed package, `scipy; extra == "page"`, unless others are given.
    """
    library = (error.name or "").partition(".")[0]
    for requirement in metadata.requires("rl-agent") or () if requirements is None else requirements:
        match = _REQUIREMENT.match(requirement)
        if match and re.sub(r"[-_.]+", "_", match[1]).lower() == library.lower():
            return f"{library} is not installed; pip install 'rl-agent[{match[2]}]' brings it"
    return None
