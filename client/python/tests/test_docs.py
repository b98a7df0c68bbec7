"""Runs the code of README.md and of the examples as it is written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

from howdah.testing import Broker

HERE = Path(__file__).parent.parent
THUMBNAILS = HERE.parent.parent / "examples" / "thumbnails" / "python"
BLOCKS: List[str] = re.findall(r"^```python\n(.*?)^```", (HERE / "README.md").read_text("utf-8"), re.M | re.S)


def environment(broker: Broker) -> Dict[str, str]:
    return {**os.environ, "HOWDAH_SERVER": broker.address, "PYTHONWARNINGS": "error::DeprecationWarning:howdah"}


def run(path: Path, broker: Broker, *arguments: str) -> str:
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(command, env=environment(broker), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def beside_worker(worker: Path, producer: Path, broker: Broker, *arguments: str) -> Tuple[str, str]:
    """Returns the output of the producer, and the errors of the worker that runs meanwhile.

    The worker must exit with status 0 after SIGTERM.
    """
    working = subprocess.Popen(
        [sys.executable, str(worker)], env=environment(broker), stderr=subprocess.PIPE, text=True
    )
    try:
        output = run(producer, broker, *arguments)
    finally:
        working.send_signal(signal.SIGTERM)
        _, errors = working.communicate(timeout=30)
    assert working.returncode == 0, errors
    return output, errors


def test_the_worker_and_the_producer_of_the_readme_work_as_written(broker: Broker, tmp_path: Path) -> None:
    for name, block in zip(("worker.py", "producer.py"), BLOCKS):
        assert block.startswith(f"# {name}\n")
        (tmp_path / name).write_text(block)
    assert sum(len(block.splitlines()) for block in BLOCKS[:2]) <= 40
    output, errors = beside_worker(tmp_path / "worker.py", tmp_path / "producer.py", broker)
    assert not errors
    assert re.fullmatch(r"\d+ \{'sent': True\}\n", output)


@pytest.mark.parametrize("number", range(2, len(BLOCKS)))
def test_each_other_block_of_the_readme_runs(number: int, broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "block.py"
    path.write_text(BLOCKS[number])
    assert run(path, broker)


def test_the_thumbnails_are_made(broker: Broker, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures, small = tmp_path / "pictures", tmp_path / "small"
    pictures.mkdir()
    for name, size in (("wide", (400, 200)), ("tall", (100, 300))):
        image.new("RGB", size, "red").save(pictures / f"{name}.png")
    (pictures / "broken.png").write_text("no image")
    for name in ("producer.py", "worker.py"):
        assert len((THUMBNAILS / name).read_text().splitlines()) <= 40
    programs = THUMBNAILS / "worker.py", THUMBNAILS / "producer.py"
    output, errors = beside_worker(*programs, broker, str(pictures), str(small))
    assert errors.count(" failed for good: ") == 1, "the picture that is broken"
    assert "wide.png 128x64\n" in output and "tall.png 128x384\n" in output and "broken.png" in output
    with image.open(small / "wide.png") as thumbnail:
        assert thumbnail.size == (128, 64)
