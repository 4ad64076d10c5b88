"""The round of measurements on a GPU: parts that end early, by themselves or by their limit, keep what they wrote."""

import json
import sys
import tarfile

import pytest
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("gpu_round")
WRITES = "import pathlib, sys; print('began'); pathlib.Path(sys.argv[1]).write_text('[1]')"


@pytest.mark.parametrize(("after", "code"), [("", 0), ("; sys.exit(3)", 3), ("; import time; time.sleep(600)", None)])
def test_a_part_keeps_what_it_wrote(tmp_path, after, code):
    out, target = tmp_path / "out", tmp_path / "all.tar.gz"
    out.mkdir()
    limit = 60.0 if code is not None else 3.0
    found = benchmark.run("one", [sys.executable, "-c", WRITES + after, str(out / "one.json")], limit, out, target)
    assert found["exit"] == code
    benchmark.bundle(out, target)
    with tarfile.open(target) as tar:
        assert sorted(tar.getnames()) == ["results", "results/one.json", "results/one.log"]
        assert json.load(tar.extractfile("results/one.json")) == [1]
        assert tar.extractfile("results/one.log").read() == b"began\n"


def test_every_part_has_its_own_results(tmp_path):
    found = benchmark.parts(tmp_path, "cifar10", tmp_path, camvid=tmp_path)
    files = [
        part.command[at + 1] for part in found.values() for at, word in enumerate(part.command) if word == "--json"
    ]
    assert len(files) == len(set(files)) > 6
    assert sum(found[name].seconds for name in ("checks", "kernels")) < 600  # the first call


def test_depth_is_measured_on_photos_where_they_are_there(tmp_path):
    without, photos = benchmark.parts(tmp_path, None, tmp_path), tmp_path / "some photos"
    with_them = benchmark.parts(tmp_path, None, tmp_path, photos=photos)
    assert "zero_shot_depth" not in " ".join(without["depth"].command)
    assert f"--photos '{photos}'" in with_them["depth"].command[-1]
