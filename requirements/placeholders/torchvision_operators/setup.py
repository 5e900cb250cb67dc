"""Puts a .pth file beside the module: Python then imports it at every start, before anything else."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithStart(build_py):
    def run(self) -> None:
        super().run()
        Path(self.build_lib, "torchvision_operators.pth").write_text("import torchvision_operators\n")


setup(cmdclass={"build_py": BuildWithStart})
