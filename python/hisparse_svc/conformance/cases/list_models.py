"""ListModels: the presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisparse_svc.conformance.case import case
from hisparse_svc.conformance.demands import check, equal

if TYPE_CHECKING:
    from hisparse_svc.conformance.server import Server


@case("planner")
def presets_are_listed_in_a_fixed_order(server: Server) -> None:
    """Each once, with a name, layers and a top-k."""
    first = server.call("ListModels").models
    names = [model.name for model in first]
    check(names and len(set(names)) == len(names), f"names of the presets: {names}")
    check(all(model.layers and model.top_k for model in first), "a preset without layers or top_k")
    equal([model.name for model in server.call("ListModels").models], names, "order of the second answer")


@case("planner")
def every_preset_can_be_planned(server: Server) -> None:
    """GetBudget knows each name, and gives the same layers."""
    for model in server.call("ListModels").models:
        plan = server.call("GetBudget", model=model.name, kv_bytes=64 << 30, host_pool=256 << 30)
        equal((plan.model.name, plan.model.layers), (model.name, model.layers), "name and layers of the plan")
