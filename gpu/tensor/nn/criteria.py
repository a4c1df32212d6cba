"""Losses as layers: what `functional` has, with its further arguments as settings."""

from __future__ import annotations

from gpu.tensor.nn import losses, margins
from gpu.tensor.nn.applied import Applied
from gpu.tensor.nn.ctc import ctc_loss


class L1Loss(Applied, function=losses.l1_loss, operands=2):
    """`functional.l1_loss` of (input, target)."""


class MSELoss(Applied, function=losses.mse_loss, operands=2):
    """`functional.mse_loss` of (input, target)."""


class SmoothL1Loss(Applied, function=losses.smooth_l1_loss, operands=2):
    """`functional.smooth_l1_loss` of (input, target)."""


class HuberLoss(Applied, function=losses.huber_loss, operands=2):
    """`functional.huber_loss` of (input, target)."""


class KLDivLoss(Applied, function=losses.kl_div, operands=2):
    """`functional.kl_div` of (input, target)."""


class PoissonNLLLoss(Applied, function=losses.poisson_nll_loss, operands=2):
    """`functional.poisson_nll_loss` of (input, target)."""


class GaussianNLLLoss(Applied, function=losses.gaussian_nll_loss, operands=3):
    """`functional.gaussian_nll_loss` of (input, target, var)."""


class BCELoss(Applied, function=losses.binary_cross_entropy, operands=2):
    """`functional.binary_cross_entropy` of (input, target)."""


class BCEWithLogitsLoss(Applied, function=losses.binary_cross_entropy_with_logits, operands=2):
    """`functional.binary_cross_entropy_with_logits` of (input, target)."""


class NLLLoss(Applied, function=losses.nll_loss, operands=2):
    """`functional.nll_loss` of (input, target)."""


class CrossEntropyLoss(Applied, function=losses.cross_entropy, operands=2):
    """`functional.cross_entropy` of (input, target).

    >>> from gpu import Tensor
    >>> loss = CrossEntropyLoss(reduction="sum")
    >>> loss(Tensor([[0.0, 0.0]]), Tensor([1])).item()
    0.6931471824645996
    """


class CTCLoss(Applied, function=ctc_loss, operands=4):
    """`functional.ctc_loss` of (log_probs, targets, input_lengths, target_lengths)."""


class CosineEmbeddingLoss(Applied, function=margins.cosine_embedding_loss, operands=3):
    """`functional.cosine_embedding_loss` of (input1, input2, target)."""


class HingeEmbeddingLoss(Applied, function=margins.hinge_embedding_loss, operands=2):
    """`functional.hinge_embedding_loss` of (input, target)."""


class MarginRankingLoss(Applied, function=margins.margin_ranking_loss, operands=3):
    """`functional.margin_ranking_loss` of (input1, input2, target)."""


class SoftMarginLoss(Applied, function=margins.soft_margin_loss, operands=2):
    """`functional.soft_margin_loss` of (input, target)."""


class MultiMarginLoss(Applied, function=margins.multi_margin_loss, operands=2):
    """`functional.multi_margin_loss` of (input, target)."""


class MultiLabelMarginLoss(Applied, function=margins.multilabel_margin_loss, operands=2):
    """`functional.multilabel_margin_loss` of (input, target)."""


class MultiLabelSoftMarginLoss(Applied, function=margins.multilabel_soft_margin_loss, operands=2):
    """`functional.multilabel_soft_margin_loss` of (input, target)."""


class TripletMarginLoss(Applied, function=margins.triplet_margin_loss, operands=3):
    """`functional.triplet_margin_loss` of (anchor, positive, negative)."""


class TripletMarginWithDistanceLoss(
    Applied, function=margins.triplet_margin_with_distance_loss, operands=3
):
    """`functional.triplet_margin_with_distance_loss` of (anchor, positive, negative)."""


class CosineSimilarity(Applied, function=margins.cosine_similarity, operands=2):
    """`functional.cosine_similarity` of (x1, x2)."""


class PairwiseDistance(Applied, function=margins.pairwise_distance, operands=2):
    """`functional.pairwise_distance` of (x1, x2)."""
