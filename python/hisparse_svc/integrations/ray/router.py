"""Ray Serve's request router that asks the fleet where a request fits.

::

    choose_replicas: Journey.step ─► Ask(node)   its replica first, then the others that fit, in the fleet's order
                                  ─► Rest(s)     nobody has room: wait here, until `wait_s` is over
                                  ─► raises      nobody takes it: the likeliest one is asked, and says why
    on_request_routed, and it still runs when `HOLD_BACK_S` is over: its prefix is at that replica's node from now on

The replica's `Admit` decides. Rules and views are the fleet's (`hisparse_svc.fleet`): this class only asks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RequestRouter

from hisparse_svc.errors import Gathered, HiSparseError
from hisparse_svc.fleet import Fleet
from hisparse_svc.fleet.journey import Ask, Journey, Rest
from hisparse_svc.integrations.ray.replicas import Replicas, name_of
from hisparse_svc.integrations.ray.sizes import request_of
from hisparse_svc.rpc import calls
from hisparse_svc.rpc.values import Request

if TYPE_CHECKING:
    from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

    from hisparse_svc.fleet.book import Known

LOG = logging.getLogger("ray.serve")
"""Where Ray's own routers write."""

HOLD_BACK_S = 0.25
"""How long what a request asks for counts against the replica it was sent to before that node's own word says so."""

MOST_WAITING = 1_024
"""Requests that look for room at once; further ones wait in Ray's own line."""


@dataclass(eq=False, slots=True)
class Sent:
    """A request that was sent on, and counts against its replica until that node's own word does."""

    journey: Journey
    known: Known
    loop: asyncio.AbstractEventLoop
    timer: asyncio.TimerHandle
    routed: bool = False
    """Its replica has taken it up."""


class CapacityRouter(RequestRouter):
    """Sends each request to the replica whose node has room for it.

    For a deployment whose class is a `NodeReplica`: `serve.deployment(request_router_config=CapacityRouter.config(…))`.
    Its fleet works with threads, so it does not matter in which event loop Ray routes.
    """

    @classmethod
    def config(cls, *, wait_s: float = 0.0, **settings: Any) -> RequestRouterConfig:
        """Give what a deployment takes. What is wrong is found here: in the router Ray lets requests wait for ever.

        Args:
            wait_s: How long a request waits here for room on any replica, from its arrival on.
            settings: Those of `hisparse_svc.fleet.Fleet`: `policy`, `choices`, `stale_after_s`, …

        Raises:
            InvalidInput: Everything wrong with them.
        """
        found = Gathered()
        found.read(calls.timeout, wait_s or calls.SHORTEST_S, "wait_s")
        tried = found.read(Fleet, (), **settings)
        if tried is not None:
            tried.close()
        found.end()
        return RequestRouterConfig(request_router_class=cls, request_router_kwargs={"wait_s": wait_s, **settings})

    def initialize_state(self, *, wait_s: float = 0.0, **settings: Any) -> None:
        """Take `request_router_kwargs`: what `config` was given."""
        self._wait_s = wait_s
        self._members = Replicas()
        self._members.update(())
        self._fleet = fleet = Fleet(self._members, **settings)
        self._sent: dict[str, Sent] = {}
        closing = weakref.finalize(self, lambda: threading.Thread(target=fleet.close, daemon=True).start())
        closing.atexit = False  # its threads end with the process

    def request_of(self, pending: PendingRequest) -> Request:
        """Give what a request asks for. Override it where the arguments say so in another way."""
        return request_of(pending.args, pending.kwargs)

    @property
    def max_num_routing_tasks(self) -> int:
        """Most requests that look for a replica at once: one that waits for room does no work."""
        return MOST_WAITING

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take in who is there now."""
        super().update_replicas(replicas)
        self._members.update(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """One is gone."""
        super().on_replica_actor_died(replica_id)
        self._members.update(self._replicas.values())

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Give replicas, each a choice of its own, the one to be asked first in front.

        It does not raise: an error here would leave the request without an answer for ever. What is wrong with the
        request the replica's node says.
        """
        if pending_request is None:
            return [list(candidate_replicas)]
        key = pending_request.metadata.internal_request_id
        self._over(key)
        request = self._request_of(pending_request)
        waited_s = max(time.time() - pending_request.created_at, 0.0)  # Ray's own clock for it
        first: str | None = None
        try:
            journey = self._fleet.journey(request, wait_s=max(self._wait_s - waited_s, 0.0))
            while first is None:
                match journey.step():
                    case Rest(seconds):
                        await asyncio.sleep(seconds)
                    case Ask(known):
                        first = known.member.name
                        self._hold_back(key, journey, known)
        except HiSparseError:
            pass
        except Exception:
            LOG.exception("no place could be found for a request; it is sent as one that fits everywhere")
            request = Request()
        return self._ordered(request, first)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Its replica has taken it up; whether that node grants, Ray does not tell."""
        super().on_request_routed(pending_request, replica_id, result)
        sent = self._sent.get(pending_request.metadata.internal_request_id)
        if sent is not None:
            sent.routed = str(replica_id.unique_id) == sent.known.member.name

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It is over there; Ray says so from a thread of its own, also of a replica that turned it down."""
        super().on_request_completed(replica_id, internal_request_id)
        sent = self._sent.get(internal_request_id)
        if sent is not None and sent.known.member.name == str(replica_id.unique_id):
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is routed any more
                sent.loop.call_soon_threadsafe(self._over, internal_request_id)

    def _request_of(self, pending: PendingRequest) -> Request:
        try:
            return self.request_of(pending)
        except Exception:  # code of the deployment's author
            LOG.exception("what a request asks for could not be read; it is sent as one that fits everywhere")
            return Request()

    def _ordered(self, request: Request, first: str | None) -> list[list[RunningReplica]]:
        """Give the chosen one, then the rest as the fleet ranks them; where no one fits, all of them."""
        by_name = {name_of(replica): replica for replica in self._replicas.values()}
        tokens = request.prompt_tokens + request.generated_tokens + request.max_new_tokens
        try:
            ranked = self._fleet.rank(tokens, pages=request.pages, prefix_hashes=list(request.prefix_hashes))
        except (HiSparseError, ValueError, OverflowError):  # a length that is none
            ranked = []
        names = [place.name for place in ranked if first is None or place.standing == "fits"]
        if first is not None:
            names = [first, *(name for name in names if name != first)]
        chosen = [[by_name[name]] for name in names if name in by_name]
        return chosen or [list(by_name.values())]

    def _hold_back(self, key: str, journey: Journey, known: Known) -> None:
        loop = asyncio.get_running_loop()
        self._sent[key] = Sent(journey, known, loop, loop.call_later(HOLD_BACK_S, self._runs, key))

    def _runs(self, key: str) -> None:
        """Its node's own word tells of it by now, if it was granted."""
        sent = self._sent.pop(key, None)
        if sent is not None and sent.routed:
            sent.journey.presumed(sent.known)
        elif sent is not None:
            sent.journey.abandoned()

    def _over(self, key: str) -> None:
        """It ended so soon, or is routed again: nothing of it is known to be anywhere."""
        sent = self._sent.pop(key, None)
        if sent is not None:
            sent.timer.cancel()
            sent.journey.abandoned()
