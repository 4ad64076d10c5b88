from pathlib import Path
from types import SimpleNamespace

import pytest
from support.small_detector import detector
from support.small_tasks import classifier

from vitrail.data.targets import DepthTarget, MaskTarget
from vitrail.deploy.bulk.coco_file import CocoFile
from vitrail.deploy.bulk.destination import check_destination, destination
from vitrail.deploy.bulk.table_files import TableFile
from vitrail.errors import ConfigError


def test_boxes_go_to_tables_and_to_coco():
    task = detector().task
    assert isinstance(destination(Path("boxes.json"), task), CocoFile)
    assert isinstance(destination(Path("boxes.csv"), task), TableFile)
    with pytest.raises(ConfigError, match="folder"):
        destination(Path("boxes"), task)


@pytest.mark.parametrize("name", ["boxes.json", "masks"])
def test_classes_have_no_position(name):
    with pytest.raises(ConfigError, match="classify"):
        destination(Path(name), classifier())


def test_a_suffix_without_a_format_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.csv"):
        check_destination(Path("a.cvs"))
    check_destination(tmp_path)
    check_destination(Path("boxes.json"))


@pytest.mark.parametrize(("name", "kind"), [("masks", "mask"), ("my-depth", "depth"), ("out", "mask")])
def test_the_name_of_a_folder_chooses_between_maps(name, kind):
    task = SimpleNamespace(schema={"mask": MaskTarget(classes=("a",)), "depth": DepthTarget()}, columns=("x",))
    assert destination(Path(name), task).kind == kind


def test_masks_in_one_json_file_are_refused_with_the_name_of_a_folder():
    task = SimpleNamespace(
        schema={"mask": MaskTarget(classes=("a",))}, columns=("x",), config=SimpleNamespace(kind="s")
    )
    with pytest.raises(ConfigError, match=r"folder.*masks/"):
        destination(Path("masks.json"), task)
