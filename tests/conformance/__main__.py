"""`python -m tests.conformance`: run every case on every server and write agent/CONFORMANCE.md."""

import sys
import tempfile
from pathlib import Path

from tests.conformance.cases import PLATFORMS
from tests.conformance.platform import examine_platform
from tests.conformance.report import DOCUMENT, document


def main() -> None:
    findings = {}
    for platform in PLATFORMS:
        with tempfile.TemporaryDirectory() as folder:
            findings[platform.name] = examine_platform(platform, Path(folder))
    text = document(findings)
    DOCUMENT.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
