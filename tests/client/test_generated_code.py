"""The committed Python code of `proto/` is what the generator makes, and the client calls what the proto declares."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from hisparse_svc import aio, client, fleet
from hisparse_svc._proto import admin_pb2, admission_pb2, budget_pb2, capacity_pb2
from hisparse_svc.fleet import settings
from hisparse_svc.rpc import calls, values

ROOT = Path(__file__).parents[2]
LEFT_OUT = {"AdminService/Dump"}
"""A ledger of 10⁶ leases is for tools that read it part by part; the client has no use for it."""


def test_the_committed_code_is_what_the_generator_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    generator.generate(tmp_path)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in generator.PACKAGE.glob("*.py*")}
    assert made == kept, "proto/ changed: run `make proto`"


def every_call() -> list[calls.Call[Any, Any]]:
    return [
        calls.get_capacity([1]),
        calls.watch_capacity([1]),
        calls.admit(values.Request(prompt_tokens=1)),
        calls.batch_admit([values.Request(prompt_tokens=1)]),
        calls.commit("l", 1, "", None),
        calls.extend("l", 1, 1, ""),
        calls.renew("l", 1, "", 1.5),
        calls.release("l", "", ""),
        calls.get_lease("l", ""),
        calls.list_leases(""),
        calls.drain(resume=False),
        calls.server_info(),
        calls.overview([1]),
        calls.get_budget({"model": "glm-5.2"}),
        calls.validate({"model": "glm-5.2"}),
        calls.list_models(),
    ]


def test_every_method_of_the_proto_is_called_with_its_own_messages() -> None:
    declared = {}
    for module in (admin_pb2, admission_pb2, budget_pb2, capacity_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                declared[f"/{service.full_name}/{method.name}"] = (
                    message_factory.GetMessageClass(method.input_type),
                    message_factory.GetMessageClass(method.output_type),
                )
    called = {call.path: (type(call.request), call.answer) for call in every_call()}
    assert called == {path: kinds for path, kinds in declared.items() if not path.endswith(tuple(LEFT_OUT))}


def test_the_two_clients_have_the_same_methods_with_the_same_parameters() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }

    assert surface(client.Client) == surface(aio.Client)


def test_what_admit_takes_by_name_is_what_a_request_has() -> None:
    lengths = ["prompt_tokens", "max_new_tokens"]
    assert [field.name for field in fields(values.Request)] == [*lengths, *values.RequestFields.__annotations__]


def test_what_both_fleets_take_by_name_is_what_is_read() -> None:
    taken = [name for name in inspect.signature(settings.read).parameters if name != "nodes"]
    assert list(settings.Fields.__annotations__) == taken
    assert all(f"{name}:" in (fleet.Fleet.__doc__ or "") for name in taken), "each is explained"
