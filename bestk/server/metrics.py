"""What Prometheus asks for at /metrics: requests, searches, the queue, times.

Counts what the web server and the loop tell it. Each server has a registry of its own.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bestk.server.handle import Handle
from bestk.server.loop import SearchLoop

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "bestk_requests", "Requests answered.", ["path", "status"], registry=self.registry
        )
        self.in_flight = Gauge(
            "bestk_requests_in_flight", "Requests being answered.", registry=self.registry
        )
        self.seconds = Histogram(
            "bestk_request_seconds",
            "Time from a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.searches = Counter(
            "bestk_searches",
            "Searches that ended: done, failed, or cancelled by their client.",
            ["model", "outcome"],
            registry=self.registry,
        )
        self.expansions = Counter(
            "bestk_expansions", "Nodes expanded.", ["model"], registry=self.registry
        )
        self.texts = Counter("bestk_texts", "Texts found.", ["model"], registry=self.registry)
        self.waited = Histogram(
            "bestk_queue_seconds",
            "Time that a search waited before it began.",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def watch(self, loop: SearchLoop) -> None:
        """Show a loop's queue and what it runs."""
        queue = Gauge("bestk_queue_length", "Searches that wait.", registry=self.registry)
        queue.set_function(lambda: loop.num_waiting)
        running = Gauge("bestk_searches_running", "Searches that run.", registry=self.registry)
        running.set_function(lambda: loop.num_running)

    def search_ended(self, handle: Handle) -> None:
        """Count a search, whatever became of it."""
        model = handle.call.lm.name
        outcome = "failed" if handle.error else "cancelled" if handle.result is None else "done"
        self.searches.labels(model, outcome).inc()
        self.expansions.labels(model).inc(handle.expanded)
        if handle.begun is not None:
            self.waited.observe(handle.begun - handle.submitted)
        if handle.result is not None:
            self.texts.labels(model).inc(len(handle.result.hypotheses))

    def text(self) -> bytes:
        """Write all numbers as Prometheus reads them."""
        return generate_latest(self.registry)


class Measured:
    """Counts and times every request on its way through."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, noted)
        finally:
            # The route's own path: what clients make up must not become a label.
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.in_flight.dec()
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)
