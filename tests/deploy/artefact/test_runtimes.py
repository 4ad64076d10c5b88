import importlib
from importlib.util import find_spec

import pytest

from vitrail.deploy.artefact.runtimes import needs
from vitrail.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "packages"), [("onnxruntime", "onnxruntime onnx onnxscript"), ("openvino", "openvino")]
)
def test_a_missing_library_says_what_to_install(name, packages, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ConfigError, match=f"pip install {packages}") as caught:
        needs(name)
    assert "vitrail[" not in str(caught.value)


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
def test_openvino_sends_no_statistics():
    needs("openvino")
    assert importlib.import_module("openvino.tools.ovc.telemetry_utils").tm.__name__.endswith("telemetry_stub")
