"""Rearrangements of images as layers: what `functional` has, with settings."""

from __future__ import annotations

from gpu.tensor.nn import grids, patches
from gpu.tensor.nn.applied import Applied


class Unfold(Applied, function=patches.unfold):
    """`functional.unfold`."""


class Fold(Applied, function=patches.fold):
    """`functional.fold`."""


class PixelShuffle(Applied, function=patches.pixel_shuffle):
    """`functional.pixel_shuffle`."""


class PixelUnshuffle(Applied, function=patches.pixel_unshuffle):
    """`functional.pixel_unshuffle`."""


class ChannelShuffle(Applied, function=patches.channel_shuffle):
    """`functional.channel_shuffle`."""


class Upsample(Applied, function=grids.interpolate):
    """`functional.interpolate`."""


class UpsamplingNearest2d(Applied, function=grids.upsample_nearest):
    """`functional.upsample_nearest`."""


class UpsamplingBilinear2d(Applied, function=grids.upsample_bilinear):
    """`functional.upsample_bilinear`."""
