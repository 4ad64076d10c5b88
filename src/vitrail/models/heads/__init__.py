
from vitrail.models.heads.deformable_detr import DeformableDetrConfig as DeformableDetrConfig
from vitrail.models.heads.detector import Detections as Detections
from vitrail.models.heads.detector import Detector as Detector
from vitrail.models.heads.detector import DetectorConfig as DetectorConfig
from vitrail.models.heads.detr import DetrConfig as DetrConfig
