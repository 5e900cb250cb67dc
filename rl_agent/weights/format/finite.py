"""Tells whether all values of a tensor are finite, where the tensor is: one pass over it, and no copy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def largest_magnitude(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return a double on the tensor's device that is finite if all values are; it is not waited for.

    `tensor`: of any shape and of a type that a version can hold; integers are finite.
    """
    import torch

    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return torch.zeros((), dtype=torch.float64, device=tensor.device)
    if tensor.element_size() == 1:  # torch has no arithmetic of 8-bit floats
        tensor = tensor.to(torch.bfloat16)
    smallest, largest = torch.aminmax(tensor)  # NaN if any value is; on a CPU in a third of a norm's time
    return torch.maximum(largest, -smallest).double()
