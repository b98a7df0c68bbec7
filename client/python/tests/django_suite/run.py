"""Runs Django's own tests of task backends against `howdah.django`.

    python run.py DIRECTORY [-v]

They come from the source distribution of Django that requirements.txt pins: it is fetched into DIRECTORY. Our backends
(backends.py) are in the place of Django's. The tests that left_out.txt names do not apply to a queue in a database. They
are run too, and must fail: one that passes does not belong there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path
from typing import Dict, Iterator, Union

import django
from django.conf import settings
from django.test import SimpleTestCase
from django.test.utils import setup_test_environment

from howdah.testing import Broker

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "with_django")]


def fetched(directory: Path) -> Path:
    """The folder `tests` of the Django that is installed."""
    target = directory / f"django-{django.get_version()}"
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "django"]
        requirements = ["--require-hashes", "-r", str(HERE / "requirements.txt")]
        subprocess.run([*command, *requirements, "-d", str(directory)], check=True)
        with tarfile.open(directory / f"{target.name}.tar.gz") as archive:
            members = [member for member in archive if "/tests/tasks/" in member.name]
            archive.extractall(directory, members, filter="data")
    return target / "tests"


def left_out() -> Dict[str, str]:
    """Names of tests, with the reasons."""
    lines = (HERE / "left_out.txt").read_text("utf-8").splitlines()
    pairs = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return {name: reason for name, _, reason in pairs}


def flat(tests: Union[unittest.TestSuite, unittest.TestCase]) -> Iterator[unittest.TestCase]:
    if isinstance(tests, unittest.TestCase):
        yield tests
    else:
        for each in tests:
            yield from flat(each)


def configure(broker: Broker) -> None:
    from database import settings_of

    os.environ["HOWDAH_SERVER"] = broker.address
    # The tests call what blocks from coroutines: Django's own backends have no database.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    settings.configure(DATABASES={"default": settings_of(broker.postgres)}, USE_TZ=True)
    django.setup()
    setup_test_environment()
    SimpleTestCase.databases = {"default"}


def main() -> int:
    tests = fetched(Path(sys.argv[1]).resolve())
    with Broker() as broker:
        configure(broker)
        import backends

        sys.modules["django.tasks.backends.dummy"] = sys.modules["django.tasks.backends.immediate"] = backends
        sys.path.insert(0, str(tests))
        names = [f"tasks.{path.stem}" for path in sorted((tests / "tasks").glob("test_*.py"))]
        suite = unittest.defaultTestLoader.loadTestsFromNames(names)
        excused = left_out()
        for test in flat(suite):
            if excused.pop(test.id().removeprefix("tasks."), None) is not None:
                test.__unittest_expecting_failure__ = True  # type: ignore[attr-defined]
        result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite)
        _, worker = backends.worker()
        worker.stop()
        worker.join()
    for name in excused:
        print(f"left_out.txt: Django {django.get_version()} has no test {name}")
    not_applied = len(result.expectedFailures)
    failed = len({test.id().partition(" ")[0] for test, _ in (*result.failures, *result.errors)})
    passed = result.testsRun - not_applied - failed - len(result.unexpectedSuccesses)
    print(
        f"Django's own tests, {django.get_version()}: {passed} passed, {result.testsRun - not_applied - passed} failed, ",
        end="",
    )
    print(f"{not_applied} do not apply")
    return 0 if result.wasSuccessful() and not excused else 1


if __name__ == "__main__":
    sys.exit(main())
