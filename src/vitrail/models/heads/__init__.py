"""Heads that read the features of any backbone: detectors, segmenters, depth. A new head is one line here."""

from vitrail.models.heads.deformable_detr import DeformableDetrConfig as DeformableDetrConfig
from vitrail.models.heads.depth_head import DepthHead as DepthHead
from vitrail.models.heads.depth_head import DepthHeadConfig as DepthHeadConfig
from vitrail.models.heads.detector import Detections as Detections
from vitrail.models.heads.detector import Detector as Detector
from vitrail.models.heads.detector import DetectorConfig as DetectorConfig
from vitrail.models.heads.detr import DetrConfig as DetrConfig
from vitrail.models.heads.dpt import DptConfig as DptConfig
from vitrail.models.heads.eomt import EomtConfig as EomtConfig
from vitrail.models.heads.rt_detr import RtDetrConfig as RtDetrConfig
from vitrail.models.heads.segformer import SegFormerConfig as SegFormerConfig
from vitrail.models.heads.segmenter import LinearSegmenterConfig as LinearSegmenterConfig
from vitrail.models.heads.segmenter import Segmenter as Segmenter
from vitrail.models.heads.segmenter import SegmenterConfig as SegmenterConfig
from vitrail.models.heads.segmenter import SetrConfig as SetrConfig
from vitrail.models.heads.unet import UNetConfig as UNetConfig
