"""How many files a process may have open."""

import subprocess
import sys

PROGRAM = """
import resource
from menura.open_files import use_hard_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
use_hard_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_process_when_its_soft_limit_is_lower_than_the_hard_one_then_it_uses_the_hard_one() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "(4096, 4096)"
