"""Who is on which seat of a session, who was taken off it, and whether a step is open.

::

    running   seat ──► request         parked   requests that keep their pages and have no seat
    open      a step's block: until its end nobody joins, leaves, moves or changes length
"""

from __future__ import annotations

from hisparse_svc.engine.running import NotRunning, Running
from hisparse_svc.errors import InvalidInput, Problem
from hisparse_svc.kernels.kinds import demand_kinds, each

__all__ = ["Roster"]


class Roster:
    """Requests of one session.

    Attributes:
        running: Those on a seat, by seat.
        parked: Those that were retracted.
        open: Whether a step is open.
    """

    def __init__(self, seats: int) -> None:
        """Start with every seat free."""
        self.running: dict[int, Running] = {}
        self.parked: set[Running] = set()
        self.open = False
        self._seats = seats

    @property
    def free_seats(self) -> int:
        """Seats that nobody has."""
        return self._seats - len(self.running)

    @property
    def leases(self) -> set[str]:
        """Leases of all requests."""
        everyone = (*self.running.values(), *self.parked)
        return {request.lease.id for request in everyone if request.lease is not None}

    def free_seat(self) -> int:
        """Give the first free seat.

        Raises:
            InvalidInput: There is none.
        """
        for seat in range(self._seats):
            if seat not in self.running:
                return seat
        rule = f"must be fewer than {self._seats}, the seats of this session"
        raise InvalidInput([Problem("running requests", str(len(self.running)), rule, "retract one, or wait")])

    def seat(self, request: Running) -> int:
        """Give a request's seat.

        Raises:
            NotRunning: It has none here.
            InvalidInput: It is no request.
        """
        demand_kinds(each(Running, request=request))
        seat = request.seat
        if seat is not None and self.running.get(seat) is request:
            return seat
        if request in self.parked:
            raise NotRunning("the request was retracted: `resume` gives it a seat again")
        raise NotRunning("the request is not of this session, or has left it: `join` it")

    def sit(self, request: Running, seat: int) -> None:
        """Give a request a seat that is free."""
        self.parked.discard(request)
        self.running[seat] = request
        request.seat, request.parked = seat, None

    def rise(self, request: Running) -> None:
        """Take a request off its seat, or out of those that were taken off it before."""
        self.parked.discard(request)
        if request.seat is not None:
            del self.running[request.seat]
            request.seat = None

    def demand_no_step(self) -> None:
        """Demand that no step is open.

        Raises:
            InvalidInput: One is.
        """
        if self.open:
            rule = "must have ended: who takes part and how far they are changes between steps"
            raise InvalidInput([Problem("step", "open", rule, "leave the `with` block of the step first")])
