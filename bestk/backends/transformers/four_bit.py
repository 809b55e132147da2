"""Linear layers whose weights stay in four bits, multiplied as they are on a CPU.

torch's packed kernel reads a quarter of what bfloat16 weights take, and a step of a few rows is as
long as the reading of the weights. Every 32 weights of a row share a scale and a minimum: weight =
number · scale + minimum, both rounded to bfloat16. Knows nothing of files.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

GROUP = 32  # weights that share a scale and a minimum
_ROWS = 16  # the kernel writes that many outputs at a time


class FourBitLinear(nn.Module):
    """A linear layer over numbers from 0 to 15, in bfloat16 whatever comes in."""

    def __init__(
        self,
        numbers: Integer[Tensor, "outputs inputs"],
        scale: Float[Tensor, "outputs groups"],
        minimum: Float[Tensor, "outputs groups"],
        bias: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = numbers.shape
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.int(), 1)
        # The kernel's numbers go from −8 to 7, and lie by groups first.
        ranges = torch.stack([scale, minimum + 8 * scale], dim=-1).transpose(0, 1)
        ranges = ranges.to(torch.bfloat16).contiguous()
        # Parameters, so that who counts bytes finds them.
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.ranges = nn.Parameter(ranges, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, hidden: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:
        """Multiply rows with the weights."""
        rows = hidden.flatten(0, -2).to(torch.bfloat16)
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, self.packed, GROUP, self.ranges
        )
        if self.bias is not None:
            product += self.bias
        return product.view(*hidden.shape[:-1], self.out_features).to(hidden.dtype)


def can_pack(layer: nn.Module) -> bool:
    """Return whether the kernel takes the weights of a layer."""
    return type(layer) is nn.Linear and layer.out_features % _ROWS == 0
