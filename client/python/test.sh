#!/usr/bin/env bash
# Runs all tests of the Python client, without any preparation:
#
# - builds the wheel and the source distribution, and checks the code
# - runs the tests with the installed wheel
# - runs the programs of README.md with the installed source distribution
# - runs the tests with other versions of Python, and with each major version of protobuf
#
# HOWDAH_BIN names the program howdah; default: howdah on the PATH. PYTHON names another interpreter, up to 3.12. PYTHONS
# lists further interpreters to test with; default: the oldest that the package declares, and the newest. Interpreters from
# 3.12 on also test howdah.django, and run Django's own tests of task backends against it. All downloads and results are
# below target/python and client/python/{dist,howdah/v1}.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
work=$(cd ../.. && pwd)/target/python
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$work"

# environment NAME REQUIREMENT...: creates a virtual environment, or recreates it if its requirements have changed.
environment() {
    local directory=$work/$1
    shift
    if [[ "$(cat "$directory/wanted" 2>/dev/null)" != "$*" ]]; then
        rm -rf "$directory"
        "$python" -m venv "$directory"
        "$directory/bin/pip" install --quiet "$@"
        echo "$*" >"$directory/wanted"
    fi
}

echo "=== $("$python" --version)"
mapfile -t wanted < <(grep -v '^#' requirements-dev.txt)
environment tools "${wanted[@]}"
tools=$work/tools/bin

echo '=== build'
rm -rf dist
"$tools/python" -m build --outdir dist . >"$work/build.log" 2>&1 || { cat "$work/build.log" && exit 1; }
wheel=$(echo dist/*.whl)
# Does not use grep -q, which closes the pipe at the first match: SIGPIPE would kill unzip.
unzip -l "$wheel" | grep 'howdah/v1/job_pb2.pyi' >/dev/null
# A build from a checkout, such as `pip install ./client/python`, takes the licences from this folder.
for licence in LICENSE-*; do cmp "$licence" "../../$licence"; done
"$tools/pip" install --quiet --force-reinstall --no-deps "$wheel"
"$tools/pip" install --quiet "$wheel"

echo '=== checks'
"$tools/ruff" check . ../../examples
"$tools/ruff" format --check --quiet . ../../examples
"$tools/mypy"

# The tests run in another directory, to test the installed package instead of the sources.
echo '=== tests'
(cd "$work" && "$tools/python" -P -m pytest -q -c "$OLDPWD/pyproject.toml" --rootdir "$OLDPWD" "$OLDPWD/tests" "$@")

echo '=== source distribution'
environment sdist pytest pytest-asyncio
"$work/sdist/bin/pip" install --quiet --force-reinstall "$(echo dist/*.tar.gz)"
(cd "$work" && sdist/bin/python -P -m pytest -q -c "$OLDPWD/pyproject.toml" --rootdir "$OLDPWD" "$OLDPWD/tests/test_docs.py")

# newest PATTERN: prints the newest Python 3.PATTERN on the PATH, or else in pyenv.
newest() {
    local each
    for each in $(compgen -c python3. | grep -xE "python3\.$1" | sort -Vr) \
        $(compgen -G "$(pyenv root 2>/dev/null)/versions/3.$1.*/bin/python3" | sort -Vr); do
        ! "$each" -c '' 2>/dev/null || { echo "$each" && return; }
    done
}

oldest=$(sed -nE 's/^requires-python = ">=3\.(.*)"/\1/p' pyproject.toml)
others=${PYTHONS:-$(newest "$oldest") $(newest '1[2-9]')}
tested=
django=false
for other in $others; do
    "$other" -c '' 2>/dev/null || continue
    version=$("$other" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    tested+=" $version"
    wanted=(grpcio pytest pytest-asyncio)
    if "$other" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
        wanted+=("$(sed -nE 's/^(django==[^ ]+).*/\1/p' tests/django_suite/requirements.txt)" 'psycopg[binary]')
        django=true
    fi
    python=$other environment "python-$version" "${wanted[@]}"
    "$work/python-$version/bin/pip" install --quiet --force-reinstall "$wheel"
    echo "=== Python $version: $("$work/python-$version/bin/pip" list --format=freeze | grep -iE '^(django|grpcio)=' | tr '\n' ' ')"
    (cd "$work" && PYTHONSAFEPATH=1 "$work/python-$version/bin/python" -m pytest -q -c "$OLDPWD/pyproject.toml" --rootdir "$OLDPWD" "$OLDPWD/tests")
    [[ ! -d $work/python-$version/lib/python$version/site-packages/django ]] ||
        (cd "$work" && PYTHONSAFEPATH=1 "$work/python-$version/bin/python" "$OLDPWD/tests/django_suite/run.py" "$work/django")
done
[[ " $tested " == *" 3.$oldest "* ]] || echo "!!! There is no Python 3.$oldest: the oldest that the package declares is NOT tested."
$django || echo '!!! There is no Python 3.12: howdah.django is NOT tested.'

for protobuf in 4.25 5 6 7; do
    grpcio=grpcio
    # The oldest supported protobuf is tested together with the oldest supported grpcio.
    [[ $protobuf != 4.25 ]] || grpcio=grpcio==1.60.2
    environment "protobuf-$protobuf" "protobuf==$protobuf.*" "$grpcio" googleapis-common-protos pytest pytest-asyncio
    "$work/protobuf-$protobuf/bin/pip" install --quiet --force-reinstall --no-deps "$wheel"
    echo "=== protobuf $protobuf: $("$work/protobuf-$protobuf/bin/pip" list --format=freeze | grep -E '^(protobuf|grpcio)=' | tr '\n' ' ')"
    (cd "$work" && "$work/protobuf-$protobuf/bin/python" -P -m pytest -q -c "$OLDPWD/pyproject.toml" --rootdir "$OLDPWD" "$OLDPWD/tests")
done
