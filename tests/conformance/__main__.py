"""`python -m tests.conformance`: run every case on every server and write agent/CONFORMANCE.md."""

import sys
import tempfile
from pathlib import Path

from tests.conformance.keys import examine_keys
from tests.conformance.platform import examine_all
from tests.conformance.postgresql import subject as postgresql
from tests.conformance.report import DOCUMENT, document


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = document(examine_all(Path(folder)), examine_keys(Path(folder)), postgresql.examine_all(Path(folder)))
    DOCUMENT.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
