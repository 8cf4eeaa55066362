"""`menura WORD ...` with the modules of this folder: /usr/bin/menura starts it without those of the host's Python."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"))

from menura.cli import main

sys.exit(main())
