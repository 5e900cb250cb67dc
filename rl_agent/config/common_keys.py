"""Reads which keys people set: those above the line `# rarely changed` in the files of `configs/`."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rl_agent.paths import CONFIG_DIR

RARELY = "# rarely changed"
"""Divides what most users set in a file or a section of it, which stands first, from the rest."""
_REST = re.compile(rf"^( *){RARELY}\n(?:\1.*\n)*", re.MULTILINE)


def common_defaults(kinds: Mapping[str, object]) -> dict[str, Any]:
    """Return the defaults of the keys that people set, nested and in the order of the files.

    `kinds` has the kind of each section that is a choice of several; one that it lacks has the keys of all.
    """
    sections = dict(_common_part(CONFIG_DIR / "config.yaml"))
    groups = [name for choice in sections.pop("defaults") if isinstance(choice, dict) for name in choice]
    for folder, _, section in (group.partition("@") for group in groups):
        files = {path.stem: dict(_common_part(path)) for path in sorted((CONFIG_DIR / folder).glob("*.yaml"))}
        for values in files.values():
            is_variant = not files.keys().isdisjoint(map(str, values.pop("defaults", ())))
            kind = values.get("kind")
            if not is_variant and kinds.get(section or folder, kind) == kind:
                sections[section or folder] = sections.get(section or folder, {}) | values
    return sections


@cache
def _common_part(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(_REST.sub("", path.read_text()))
    return values
