#!/bin/bash
# The Python package on a GPU host, with PyTorch and what other frameworks are installed there:
#
#   tests/gpu/python.sh BUILD [PYTEST ARGUMENT...]
#
# BUILD holds bin/topkd, bin/topkctl, lib/libtopkd.so.0 and lib/libtopksel.so.0 (of a build with
# CUDA). Needs pytest; with pytest-xdist what may run side by side does. What is missing on the host
# fails: run `-k 'not jax'` to leave something out.
set -u

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
build=$(realpath "${1:?usage: python.sh BUILD [PYTEST ARGUMENT...]}")
shift
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../client/python")
export TOPKD_BIN=$build/bin TOPKD_LIBRARY=$build/lib PYTHONPATH=$here/src PYTHONDONTWRITEBYTECODE=1
cd "$here" || exit 2
pytest=(python3 -m pytest -q -p no:cacheprovider tests/gpu)
beside=()
if python3 -c 'import xdist' 2>/dev/null; then beside=(-n 6 --dist worksteal); fi
failed=0
"${pytest[@]}" -m "gpu and alone" "$@" || failed=1
"${pytest[@]}" -m "gpu and not alone" "${beside[@]}" "$@" || failed=1
exit $failed
