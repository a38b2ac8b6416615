#!/usr/bin/env bash
# Builds the wheel, installs it in a clean virtual environment, and runs the type checker and the
# tests there:
#
#   client/python/check.sh [BUILD]        BUILD: a build of topkd (build/dev), with its bin and lib
#
# Everything it makes lies in build/python. Needs python3 with venv (deploy/packages.sh, group check)
# and PyPI. Where BUILD has the stand-in for the CUDA driver (built with CUDA), the tests of a GPU's
# session run over it; without, a line says that they do not. PyTorch is not installed here: its
# package is gigabytes. What it needs is tested with stand-ins (tests/test_frameworks.py) and, with
# PyTorch itself, on a GPU host (tests/gpu/python.sh).
set -euo pipefail

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath -m -- "${1:-$root/build/dev}")
here=$root/client/python
work=$root/build/python
stand_in=$build/lib/fake_libcuda.so

for file in bin/topkd bin/topkctl lib/libtopkd.so.0 lib/libtopksel.so.0; do
    if [[ ! -e $build/$file ]]; then
        echo "check.sh: $build has no $file: build topkd first (cmake --build --preset dev)" >&2
        exit 1
    fi
done

rm -rf "$work"
mkdir -p "$work"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1
export PIP_RETRIES=5 PIP_TIMEOUT=60 # of each download
unset TOPKD_LIBRARY PYTHONPATH

# One environment for the tools, one as clean as a user's: the wheel, NumPy, pytest.
/usr/bin/python3 -m venv "$work/tools"
/usr/bin/python3 -m venv --without-pip "$work/clean"
pip=("$work/tools/bin/python" -m pip)

# get ARGUMENT...: pip, up to three times: what fails of it is most often a download.
get() {
    local try
    for try in 1 2 3; do
        if "${pip[@]}" "$@"; then return 0; fi
        echo "check.sh: pip failed, try $try of 3" >&2
        sleep $((5 * try))
    done
    return 1
}

# Fixed versions: what they find depends on nothing but the sources.
get install -q hatchling==1.33.0 mypy==2.4.1
TOPKD_WHEEL_LIBRARIES=$build/lib \
    "${pip[@]}" wheel -q --no-build-isolation --no-deps -w "$work" "$here"
wheel=$(echo "$work"/topkd-*.whl)
get --python "$work/clean/bin/python" install -q --no-compile "$wheel" numpy==2.4.6 pytest==9.2.0
echo "check.sh: $(basename "$wheel"), $(du -k "$wheel" | cut -f 1) KiB"

cd "$here"
"$work/tools/bin/mypy" --python-executable "$work/clean/bin/python" --cache-dir "$work/mypy"

export TOPKD_BIN=$build/bin
test=("$work/clean/bin/python" -m pytest -q -p no:cacheprovider)
"${test[@]}" tests -m "not gpu" --ignore tests/standin
if [[ -e $stand_in ]]; then
    LD_PRELOAD=$stand_in "${test[@]}" tests/standin
else
    echo "check.sh: NOT RUN: the tests of a GPU's session, as $build is built without CUDA"
fi
