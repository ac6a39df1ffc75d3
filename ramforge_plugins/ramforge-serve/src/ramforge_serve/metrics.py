"""``/metrics``, for Prometheus: read from the scheduler, the budget and the stream when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from ramforge_core.system import process_memory
from ramforge_serve.service import Service


class ServiceCollector(Collector):
    """All figures of a service, as they are now."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        load, totals = service.scheduler.load, service.totals
        budget, reads = service.model.engine.budget, service.model.engine.reads
        yield GaugeMetricFamily("ramforge_requests_running", "Requests with a sequence.", load.active)
        yield GaugeMetricFamily("ramforge_requests_waiting", "Requests in the queue.", load.waiting)
        yield GaugeMetricFamily(
            "ramforge_sequences_kept", "Sequences kept for texts that begin alike.", load.kept
        )
        yield CounterMetricFamily("ramforge_requests", "Requests taken.", totals.requests)
        yield CounterMetricFamily("ramforge_requests_failed", "Requests that an error ended.", totals.failed)
        yield CounterMetricFamily("ramforge_prompt_tokens", "Of ended requests.", totals.prompt_tokens)
        yield CounterMetricFamily(
            "ramforge_prompt_tokens_reused", "Of them, not computed.", totals.reused_tokens
        )
        yield CounterMetricFamily("ramforge_generated_tokens", "Of ended requests.", totals.generated_tokens)
        yield CounterMetricFamily("ramforge_passes", "Passes over the weights.", load.passes)
        yield CounterMetricFamily("ramforge_pass_tokens", "Tokens of all passes.", load.tokens)
        yield CounterMetricFamily(
            "ramforge_read_bytes", "Weights read from disk.", reads.read_bytes + reads.row_bytes
        )
        yield CounterMetricFamily(
            "ramforge_stall_seconds", "Time that passes waited for the disk.", reads.stall_s
        )
        if budget.limit is not None:
            yield GaugeMetricFamily("ramforge_budget_bytes", "The memory budget.", budget.limit)
        tags = GaugeMetricFamily("ramforge_budget_used_bytes", "Charged to the budget.", labels=["tag"])
        for tag, use in budget.by_tag().items():
            tags.add_metric([tag], use.bytes)
        yield tags
        resident = process_memory().rss
        if resident is not None:
            yield GaugeMetricFamily("ramforge_resident_bytes", "Resident memory of the process.", resident)


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes
