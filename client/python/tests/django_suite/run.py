"""Runs Django's own tests of task backends against `howdah.django`.

    python run.py DIRECTORY [-v]

The tests come from the source distribution of Django that requirements.txt pins, which is downloaded to DIRECTORY. The
backends of backends.py replace Django's. The tests listed in not_applicable.txt do not apply to a queue in a database.
They run too, and must fail: a listed test that passes makes the run fail.
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
    """Returns the directory `tests` of the installed version of Django. Downloads it if necessary."""
    target = directory / f"django-{django.get_version()}"
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "django"]
        requirements = ["--require-hashes", "-r", str(HERE / "requirements.txt")]
        subprocess.run([*command, *requirements, "-d", str(directory)], check=True)
        with tarfile.open(directory / f"{target.name}.tar.gz") as archive:
            members = [member for member in archive if "/tests/tasks/" in member.name]
            archive.extractall(directory, members, filter="data")
    return target / "tests"


def not_applicable() -> Dict[str, str]:
    """Returns the reasons of not_applicable.txt by test name."""
    lines = (HERE / "not_applicable.txt").read_text("utf-8").splitlines()
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
    # Django's tests call blocking functions in coroutines, because Django's own backends use no database.
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
        excused = not_applicable()
        for test in flat(suite):
            if excused.pop(test.id().removeprefix("tasks."), None) is not None:
                test.__unittest_expecting_failure__ = True  # type: ignore[attr-defined]
        result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite)
        _, worker = backends.worker()
        worker.stop()
        worker.join()
    for name in excused:
        print(f"not_applicable.txt: Django {django.get_version()} has no test {name}")
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
