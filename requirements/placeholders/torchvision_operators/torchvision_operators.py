"""Lets torchvision be imported beside a torch without CUDA: declares the operators that its import asks for.

The published builds of torchvision hold operators for CUDA and do not load beside a CPU build of torch.
Image processors need none of them, but the import of torchvision fails where two are not even declared.
Importing this module costs nothing until somebody imports torchvision.
"""

import sys
from importlib.abc import MetaPathFinder

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")


class _DeclareFirst(MetaPathFinder):
    """Finds nothing; declares the operators when torchvision is looked for."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if not torch.version.cuda:
                self.library = torch.library.Library("torchvision", "DEF")  # declared as long as it lives
                sys.modules[__name__]._library = self.library
                for name in _OPERATORS:
                    self.library.define(name + _SIGNATURE)
        return None


sys.meta_path.insert(0, _DeclareFirst())
