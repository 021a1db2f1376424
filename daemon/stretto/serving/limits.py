"""What a connection may cost, and who is at its other end. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on every connection of one ``serve`` call. No client can hold a resource longer or larger than these say.

    Attributes:
        max_connections: open at once; the next is told 503 and closed.
        header_bytes: request line and all header fields together; more is 431.
        body_bytes: request body, declared or counted; more is 413.
        header_timeout_s: from the first byte of a request (or from the connect) to its last header byte; 408.
        body_timeout_s: silence between two pieces of a body; 408.
        body_total_timeout_s: all the waiting for one body together; 408.
        write_timeout_s: a client that takes no byte of a 64 KiB piece for so long is cut off.
        keep_alive_s: idle time between two requests on a connection.
        linger_s: how long what a client still sends is thrown away, so that it can read a reply it did not wait for.
        first_request_s: after ``stopping``, how long a connection that was never used may still send its one request.
        drain_grace_s: after ``stopping``, how long requests in flight may go on.
        end_margin_s: after that, how long they have to send a proper last word before they are cut.
    """

    max_connections: int = 256
    header_bytes: int = 32 * 1024
    body_bytes: int = 32 * 1024 * 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_total_timeout_s: float = 300.0
    write_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    linger_s: float = 2.0
    first_request_s: float = 0.5
    drain_grace_s: float = 10.0
    end_margin_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 0 or (value == 0 and not name.endswith(("grace_s", "margin_s", "linger_s"))):
                raise ValueError(f"{name} is {value}; it must be positive")


@dataclass(slots=True)
class Counters:
    """What a ``serve`` call has seen. Changed by the event loop only."""

    open: int = 0
    accepted_total: int = 0
    turned_away_total: int = 0
    requests_total: int = 0
    refused_total: int = 0
    timed_out_total: int = 0
    failed_total: int = 0

    def stats(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}
