"""Tests of models need torch and transformers; what is missing is a skip with its reason."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-engine")
torch.set_num_threads(1)  # tensors here are tiny: threads would spend their time waiting for each other
