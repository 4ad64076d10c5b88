"""The contract of every detector: features in, a fixed number of boxes with class scores out, no NMS."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from vitrail.config import Choice, Count
from vitrail.layers.boxes import precise, to_corners
from vitrail.models.backbone import Backbone, Features


class Boxes(NamedTuple):
    """Class logits and boxes of some queries; a box is its centre and size, as shares of the image's sides."""

    logits: Tensor  # L B Q K: of each decoder layer, the last of which is the answer
    boxes: Tensor  # L B Q 4


class Noised(NamedTuple):
    """True boxes with noise that a detector learns to undo: queries whose answer is known without matching.

    The queries of a group do not see those of another. A query whose `positive` is False is too far off to be a box
    of any class; one whose `valid` is False is padding.
    """

    labels: Tensor  # B R int64, some of them wrong
    boxes: Tensor  # B R 4, with noise
    true_labels: Tensor  # B R int64
    true_boxes: Tensor  # B R 4
    positive: Tensor  # B R bool
    valid: Tensor  # B R bool
    groups: int


class Detections(NamedTuple):
    """The output of a detector; all but `found` is for training."""

    found: Boxes
    proposals: Boxes | None = None  # of tokens; 1 B S 1 where their one logit says whether there is an object
    extra: Boxes | None = None  # of queries that learn from repeated boxes
    noised: Boxes | None = None  # L B R: of `Noised`, in its order


class DetectorConfig(Choice):
    """Which detector reads the features of a backbone; `queries` is the most boxes that it finds in an image."""

    queries: Count
    softmax: ClassVar[bool] = False  # whether classes exclude each other and the last logit means "no object"
    takes_padding: ClassVar[bool] = False  # whether images of a batch may have different sizes, padded to one
    repeat: int = 1  # how often each box is repeated for the extra queries

    @abstractmethod
    def build(self, backbone: Backbone, num_classes: int) -> "Detector":
        """The detector for the levels of a backbone."""


class Detector(nn.Module, ABC):
    """Features -> boxes with class logits, K of them, or K + 1 where classes exclude each other."""

    config: DetectorConfig

    @abstractmethod
    def forward(self, features: Features, noised: Noised | None = None, valid: Tensor | None = None) -> Detections:
        """Boxes of all decoder layers; in training also what else is learned.

        Where the config `takes_padding`, `valid`, B H W bool, is True for the pixels of each image, which lies in the
        top left corner of a padded batch; boxes are then shares of its own sides.
        """

    def scores(self, logits: Tensor) -> Tensor:
        """Class probabilities without that of "no object": B Q K+ -> B Q K."""
        return logits.softmax(dim=-1)[..., :-1] if self.config.softmax else logits.sigmoid()

    def decode(self, logits: Tensor, boxes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The `count` best boxes: B Q K+, B Q 4 -> corners B count 4 as shares, scores and classes B count.

        Where classes exclude each other a query gives one box, of its likeliest class, as in DETR; otherwise a box
        of several classes may be named several times.
        """
        rows, scores, labels = self.best(logits, count)
        corners = to_corners(precise(boxes)).clamp(0, 1)
        return corners.gather(1, rows[..., None].expand(-1, -1, 4)), scores, labels

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, scores and classes of the `count` best boxes: B Q K+ -> B count each."""
        scores = self.scores(precise(logits))
        if self.config.softmax:
            likeliest, labels = scores.max(dim=2)  # B Q
            best, rows = likeliest.topk(count, dim=1)
            return rows, best, labels.gather(1, rows)
        best, index = scores.flatten(1).topk(count, dim=1)  # B QK -> B count
        return index // scores.shape[2], best, index % scores.shape[2]


def prior_bias(classifier: nn.Linear, share: float = 0.01) -> None:
    """Starts a classifier at the probability `share` for each class: early losses stay calm (arXiv:1708.02002)."""
    nn.init.constant_(classifier.bias, -math.log((1 - share) / share))
