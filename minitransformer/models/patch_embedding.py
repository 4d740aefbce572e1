"""A picture as tokens: its patches, a class token before them, and learned positions.

Built in chapter 14. Paper: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021), section 3.1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1
from minitransformer.models.vit_config import Rectangle, sides

__all__ = ["PatchEmbedding"]


class PatchEmbedding(nn.Module):
    """Patches of a picture, each times one matrix; a class token in front; positions added.

    A convolution whose stride is its width does both, the cutting and the product. Patches are
    counted row by row. The class token is a learned vector, the same for every picture.

    Args:
        image_size, patch_size, num_channels, d_model: see `ViTConfig`.

    Raises:
        ValueError: if a size is below 1, or patches do not fill a picture.

    Example:
        >>> embed = PatchEmbedding(Rectangle(6, 8), patch_size=2, num_channels=3, d_model=10)
        >>> embed(torch.zeros(5, 3, 6, 8)).shape  # 3 rows of 4 patches, and the class token
        torch.Size([5, 13, 10])

    Paper: Dosovitskiy et al., equation 1.
    """

    def __init__(
        self,
        image_size: int | Rectangle,
        patch_size: int | Rectangle,
        num_channels: int,
        d_model: int,
    ) -> None:
        super().__init__()
        check_at_least_1(num_channels=num_channels, d_model=d_model)
        self.patch_size, self.image_size = sides(patch_size), sides(image_size)
        rows, columns = self.grid(*self.image_size)
        self.projection = nn.Conv2d(num_channels, d_model, self.patch_size, stride=self.patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d_model))
        self.positions = nn.Parameter(torch.zeros(1, 1 + rows * columns, d_model))
        self.initialise(None)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw positions with σ = 0.02, the matrix with variance 1 / its inputs; the rest is 0."""
        std = self.projection.weight[0].numel() ** -0.5
        nn.init.normal_(self.projection.weight, std=std, generator=generator)
        nn.init.normal_(self.positions, std=0.02, generator=generator)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name in ("projection.bias", "class_token"):
                    parameter.zero_()

    def grid(self, height: int, width: int) -> Rectangle:
        """Rows and columns of patches in a picture of that size."""
        high, wide = self.patch_size
        if min(high, wide, height, width) < 1 or height % high or width % wide:
            # A convolution would leave out what is over, without a word.
            raise ValueError(
                f"patches must fill a picture, got {high} × {wide} for {height} × {width} pixels"
            )
        return Rectangle(height // high, width // wide)

    def forward(self, pictures: Tensor, *, interpolate: bool = False) -> Tensor:
        """Make tokens of pictures.

        Args:
            pictures: (b, channels, height, width), floating point.
            interpolate: take pictures of another size too, with positions read off between the
                learned ones, as points of a smooth surface (bicubic).

        Returns:
            (b, 1 + patches, d), the class token first.

        Raises:
            ValueError: if pictures have other channels or another size, or patches do not fill
                them.
        """
        channels = self.projection.in_channels
        if pictures.dim() != 4 or pictures.size(1) != channels:
            raise ValueError(
                f"pictures must be (b, {channels}, height, width), got {tuple(pictures.shape)}"
            )
        size = Rectangle(*pictures.shape[2:])
        if size != self.image_size and not interpolate:
            (height, width), (high, wide) = size, self.image_size
            raise ValueError(
                f"pictures must be {high} × {wide} pixels, got {height} × {width}; "
                "with interpolate=True other sizes are taken"
            )
        positions = self.positions_of(self.grid(*size))
        patches = self.projection(pictures).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(patches), -1, -1)
        return torch.cat([class_token, patches], dim=1) + positions

    def positions_of(self, grid: Rectangle) -> Tensor:
        """Vectors of the positions in a grid, (1, 1 + patches, d)."""
        learned = self.grid(*self.image_size)
        if grid == learned:
            return self.positions
        surface = self.positions[:, 1:].transpose(1, 2).unflatten(2, learned)
        points = F.interpolate(surface, grid, mode="bicubic", align_corners=False)
        return torch.cat([self.positions[:, :1], points.flatten(2).transpose(1, 2)], dim=1)
