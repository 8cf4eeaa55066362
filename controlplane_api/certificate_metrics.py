"""When certificates in files of this host expire, for Prometheus.

Comes in: PEM files, read at each reading, since they may change while a process runs. Goes out: a gauge for each file
that is there and is a certificate; what can't be read is absent. Nothing is durable.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from menura.metric_families import Families, Figure
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

FIGURES = (
    Figure(
        "menura_certificate_expiry_timestamp_seconds",
        "When a certificate expires that this process uses.",
        ("certificate",),
    ),
)


class CertificatesCollector(Collector):
    def __init__(self, files: Mapping[str, Path]) -> None:
        """By what they are for."""
        self._files = files

    def collect(self) -> Iterator[Metric]:
        found = Families(FIGURES)
        for certificate, file in self._files.items():
            with suppress(OSError, ValueError):
                expires = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
                found.add(FIGURES[0].name, expires.timestamp(), certificate)
        yield from found
