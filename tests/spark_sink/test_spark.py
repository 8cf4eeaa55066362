import subprocess
import sys
from pathlib import Path

from spark_sink.spark import pack_code


def test_code_when_packed_for_executors_then_tasks_are_imported_from_it(tmp_path: Path):
    packed = pack_code(tmp_path)
    script = (
        f"import sys; sys.path.insert(0, {str(packed)!r})\n"
        "from spark_sink.ingest import cut_log_source, table_task\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ('menura', 'spark_sink')), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(module.startswith(str(packed)) for module in done.stdout.split())
