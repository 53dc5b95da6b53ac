"""An exporter of a job's metrics for Prometheus, on one port for all its workers."""

from prometheus_client import CollectorRegistry, start_http_server

from tfdist.monitor.exporters.exporter import Update, address
from tfdist.monitor.watch import prometheus_metrics
from tfdist.monitor.watch.snapshot import Snapshot


class Metrics:
    """A server of a registry's metrics at ``/metrics``, until it is closed."""

    def __init__(self, where: str, registry: CollectorRegistry) -> None:
        host, port = address(where)
        try:
            self._server, self._thread = start_http_server(port, host, registry=registry)
        except OSError as error:
            raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Prometheus(Metrics):
    """An exporter that serves the metrics of a job."""

    def __init__(self, where: str) -> None:
        self._found: Snapshot | None = None
        super().__init__(where, prometheus_metrics.registry_of(lambda: self._found))

    def write(self, update: Update) -> None:
        self._found = update.snapshot
