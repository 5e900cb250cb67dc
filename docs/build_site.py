"""Builds README.md and the pages of docs/ as a site in build/site; any warning fails it.

    pip install -r requirements/site.txt      in an environment of its own; the package is not needed
    python docs/build_site.py

The builder takes one folder of pages, so build/pages gets a copy of each page and of each file that a page
links to, at its place in the repository: a link works the same here and there. Links and anchors are checked.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIES = ROOT / "build" / "pages"


def files() -> Iterator[Path]:
    """Every page, and what it links to."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        yield page
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            yield (page.parent / link).resolve()


def main() -> int:
    shutil.rmtree(COPIES, ignore_errors=True)
    for file in sorted(set(files())):
        copy = COPIES / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    build = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(build.stdout)
    return build.returncode or "griffe:" in build.stdout  # docstrings: --strict does not count these


if __name__ == "__main__":
    sys.exit(main())
