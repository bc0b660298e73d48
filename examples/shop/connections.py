"""Lets the shop hang up: HTTP servers offer no way to end a request without an answer."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

Address = tuple[str, int]


class Connections:
    """The open connections, by the client's address."""

    def __init__(self) -> None:
        self._open: dict[Address, asyncio.Transport] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """Return uvicorn's HTTP protocol, made to report its connections here."""
        connections = self._open

        class ReportingProtocol(H11Protocol):
            def connection_made(  # type: ignore[override]
                self, transport: asyncio.Transport
            ) -> None:
                super().connection_made(transport)
                if self.client:
                    connections[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client:
                    connections.pop(self.client, None)
                super().connection_lost(exc)

        return ReportingProtocol

    async def drop(self, client: Address) -> None:
        """Close the client's connection at once; whatever is sent on it later goes nowhere."""
        transport = self._open.get(client)
        if transport is not None:
            transport.abort()
        # The protocol hears of the loss in the loop's next turn; an answer must not overtake that.
        await asyncio.sleep(0)
