"""The committed Go code has every field of the protos that it was made from: `make router-go-proto` makes it anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hisparse_svc._proto import admission_pb2, capacity_pb2, types_pb2

from tests.conftest import ROOT

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

FILES = {"admission": admission_pb2, "capacity": capacity_pb2, "types": types_pb2}


def fields(file: FileDescriptor) -> set[str]:
    return {field.name for message in file.message_types_by_name.values() for field in message.fields}


@pytest.mark.parametrize("name", FILES)
def test_every_field_is_in_the_go_code(name: str) -> None:
    text = (ROOT / f"examples/router-go/hisparse/v1/{name}.pb.go").read_text(encoding="utf-8")
    missing = [field for field in fields(FILES[name].DESCRIPTOR) if f"name={field}," not in text]
    assert not missing, f"make router-go-proto: {missing}"
