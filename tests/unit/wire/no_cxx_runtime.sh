#!/bin/sh
# The daemon and the library need no C++ runtime of the host, and hand none of theirs out.
#
# usage: no_cxx_runtime.sh FILE...
set -eu
[ $# -gt 0 ] || { echo "no files given"; exit 1; }
for file in "$@"; do
    needed=$(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    case $needed in
    *libc.so*) ;;
    *) echo "$file: its libraries cannot be read: '$needed'"; exit 1 ;;
    esac
    for library in $needed; do
        case $library in
        libstdc++* | libc++* | libgcc_s*)
            echo "$file needs $library: see proto/CMakeLists.txt"
            exit 1
            ;;
        esac
    done
    # C++ names, and those of its runtime, that are defined and visible
    if nm --dynamic --defined-only "$file" | grep -E ' (_Z|__cxa|__gxx|_Unwind)'; then
        echo "$file exports C++"
        exit 1
    fi
done
echo "$# files need no C++ runtime and export none"
