#!/usr/bin/env bash
# The installed package: what a user of the library gets, and that it is enough.
#
#   package_test.sh BUILD_DIR SOURCE_DIR
#
# Installs the build into a folder of its own, moves that elsewhere, builds the example against it
# with find_package and with pkg-config, in C and (the headers) in C++, and runs it against the
# installed daemon. Exit code 0 when all of that works.
set -euo pipefail

build=$1
source=$2
work=$(mktemp -d /tmp/topkd-package-XXXXXX)
daemon=

clean_up() {
    if [[ -n $daemon ]]; then
        kill -TERM "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf -- "$work"
}
trap clean_up EXIT

die() {
    printf 'package_test: %s\n' "$1" >&2
    exit 1
}

expect_file() {
    [[ -e $prefix/$1 ]] || die "$1 was not installed"
}

# ---- Install, and move: nothing may remember where it was -------------------------------------
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
libdir=$(cd "$prefix" && dirname "$(find . -name 'libtopkd.so' | head -n 1)")
libdir=${libdir#./}
[[ -n $libdir ]] || die "libtopkd.so was not installed"
for file in include/topkd.h include/topkd_status.h include/topk_select.h \
    "$libdir/libtopkd.so.0" "$libdir/libtopksel.so.0" "$libdir/pkgconfig/topkd.pc" \
    "$libdir/pkgconfig/topksel.pc" "$libdir/cmake/topkd/topkdConfig.cmake" \
    "$libdir/cmake/topkd/topkdConfigVersion.cmake" bin/topkd bin/topkctl; do
    expect_file "$file"
done
headers=$(cd "$prefix/include" && find . -type f | sort | tr '\n' ' ')
[[ $headers == './topk_select.h ./topkd.h ./topkd_status.h ' ]] ||
    die "installed headers are not the public ones: $headers"
readelf -d "$prefix/$libdir/libtopkd.so" | grep -q 'SONAME.*\[libtopkd\.so\.0\]' ||
    die "libtopkd.so has not the so name libtopkd.so.0"
if grep -rlF "$work/first" "$prefix/$libdir/pkgconfig" "$prefix/$libdir/cmake" ||
    grep -rlF "$build" "$prefix/$libdir/pkgconfig" "$prefix/$libdir/cmake"; then
    die "the files above name a folder of the build"
fi

# ---- The daemon of the package ----------------------------------------------------------------
"$prefix/bin/topkd" --socket-dir "$work/run" --device cpu --log-level error --allow-shared-pid1 &
daemon=$!
export TOPKD_URL=ipc://$work/run/topkd.sock

run_example() {
    local output
    output=$(LD_LIBRARY_PATH=$prefix/$libdir "$1")
    [[ $(grep -c '^row [0-9]: ' <<<"$output") == 4 ]] || die "$1 printed: $output"
}

# ---- find_package -----------------------------------------------------------------------------
mkdir "$work/cmake"
cat >"$work/cmake/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(topkd 0.1 REQUIRED CONFIG)
add_executable(first_client $source/client/examples/first_client.c)
target_link_libraries(first_client PRIVATE topkd::topkd)
add_executable(in_process in_process.c)
target_link_libraries(in_process PRIVATE topkd::topksel)
EOF
cat >"$work/cmake/in_process.c" <<'EOF'
#include <topk_select.h>
int main(void)
{
    char detail[TOPK_DETAIL_SIZE];
    struct topk_cpu *cpu;
    struct topk_cpu_config config = {.num_threads = 1};
    float scores[4] = {1, 3, 2, 0};
    int32_t indices[2];
    struct topk_args args = {.scores = scores, .row_stride = 4, .indices = indices,
                             .index_stride = 2, .num_rows = 1, .width = 4, .length_all = 4, .k = 2};
    struct topk_options options = {TOPK_ORDER_VALUE, TOPK_TIES_ANY};
    if (topk_cpu_create(&config, &cpu, detail) != TOPK_OK ||
        topk_cpu_select(cpu, &args, &options, NULL, detail) != TOPK_OK) {
        return 1;
    }
    topk_cpu_destroy(cpu);
    return indices[0] == 1 && indices[1] == 2 ? 0 : 2;
}
EOF
cmake -S "$work/cmake" -B "$work/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" ||
    die "find_package: $(tail -n 20 "$work/cmake.log")"
cmake --build "$work/cmake/build" >"$work/cmake.log" 2>&1 ||
    die "building against find_package: $(tail -n 20 "$work/cmake.log")"
run_example "$work/cmake/build/first_client"
LD_LIBRARY_PATH=$prefix/$libdir "$work/cmake/build/in_process" || die "topksel in process: $?"

# ---- pkg-config, strict C11 and C++ -----------------------------------------------------------
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
[[ $(pkg-config --modversion topkd) == 0.1.* ]] || die "pkg-config: another version"
read -ra flags <<<"$(pkg-config --cflags --libs topkd)"
cc -std=c11 -Wall -Wextra -pedantic -Werror "$source/client/examples/first_client.c" "${flags[@]}" \
    -o "$work/first_client"
run_example "$work/first_client"
printf '#include <topkd.h>\n#include <topk_select.h>\nint main() { return topkd_version() == 0; }\n' \
    >"$work/headers.cpp"
read -ra both <<<"$(pkg-config --cflags --libs topkd topksel)"
c++ -std=c++17 -Wall -Wextra -pedantic -Werror "$work/headers.cpp" "${both[@]}" -o "$work/headers"
LD_LIBRARY_PATH=$prefix/$libdir "$work/headers" || die "the headers in C++: $?"
# Nothing that the library stands on has to be named by its user.
"$prefix/bin/topkctl" version >/dev/null || die "the installed topkctl does not run"
printf 'package_test: ok\n'
