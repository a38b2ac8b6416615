#!/bin/sh
# Who may include whom: reads the #include lines of every C, C++ and CUDA source.
#
#     proto    -> FlatBuffers; its include/ is what others see
#     client   -> proto/include; topkctl also kernels/include (it selects without a daemon);
#                 examples no private header of the library; the public headers only each other
#     kernels  -> CUDA in kernels/cuda only, nothing of the other rooms
#     server   -> proto/include, kernels/include, libuv, libyaml, systemd; CUDA only in files with
#                 `cuda` in their name
#     nothing  -> tests; tests -> everything
#
# A header made from a template x.h.in counts as x.h beside it; templates in cmake/ are for all.
#
# usage: check_rooms.sh ROOT
# Exit 0: all includes are allowed. Exit 1: each that is not, a line each.
set -eu
cd "$1"

rooms=
for room in proto client kernels server config deploy tests cmake; do
    if [ -d "$room" ]; then rooms="$rooms $room"; fi
done
[ -n "$rooms" ] || { echo "$1 holds none of the rooms"; exit 1; }

list=$(mktemp)
trap 'rm -f "$list"' EXIT
# shellcheck disable=SC2086 # the rooms are words
find $rooms -type f \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' \
    -o -name '*.cuh' -o -name '*.h.in' \) | LC_ALL=C sort >"$list"
[ -s "$list" ] || { echo "$1: no sources found"; exit 1; }

# shellcheck disable=SC2046 # no source has a space in its name
grep -nHE '^[[:space:]]*#[[:space:]]*include' $(cat "$list") | LC_ALL=C awk -v list="$list" '
BEGIN {
    while ((getline path < list) > 0) {
        sub(/\.in$/, "", path)
        is_file[path] = 1
        paths[num_paths++] = path
    }
    # C11, POSIX and Linux; a library belongs into library_of() instead
    n = split("assert ctype errno fenv float inttypes limits locale math setjmp signal stdalign " \
        "stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string time wchar aio " \
        "dirent dlfcn endian elf err fcntl fnmatch getopt glob grp libgen link malloc netdb poll " \
        "pthread pwd regex sched search semaphore spawn strings sysexits syslog termios ucontext " \
        "unistd utime execinfo sys/ linux/ netinet/ arpa/ net/ asm/", names, " ")
    for (i = 1; i <= n; i++)
        is_system[names[i]] = 1
}

# "a/b/../c" -> "a/c"
function normal(path,    parts, out, n, i, top) {
    n = split(path, parts, "/")
    top = 0
    for (i = 1; i <= n; i++) {
        if (parts[i] == "..") {
            if (top > 0) top--
        } else if (parts[i] != "." && parts[i] != "")
            out[++top] = parts[i]
    }
    path = out[1]
    for (i = 2; i <= top; i++)
        path = path "/" out[i]
    return path
}

function library_of(name) {
    if (name ~ /^flatbuffers\//) return "FlatBuffers"
    if (name ~ /^nng\//) return "NNG"
    if (name == "uv.h") return "libuv"
    if (name == "yaml.h" || name ~ /^cyaml\//) return "libyaml"
    if (name ~ /^systemd\//) return "systemd"
    if (name == "cmocka.h") return "cmocka"
    if (name ~ /^boost\/context\//) return "Boost.Context"
    if (name ~ /^sanitizer\//) return "the sanitizers"
    if (name == "Python.h") return "Python"
    if (name ~ /^(cub|cuda|thrust|nv)\// || name ~ /^(cuda|nvml|cooperative_groups|mma|nvtx)[^\/]*$/)
        return "CUDA"
    if (name ~ /^(immintrin|x86intrin|cpuid|arm_neon|arm_sve)\.h$/) return "vector intrinsics"
    if (name ~ /^[a-z_]+$/) return "the C++ library"
    return ""
}

function may_use_library(file, library) {
    if (file ~ /^tests\//) return 1
    if (library == "FlatBuffers") return file ~ /^proto\/[^\/]*\.(cpp|hpp)$/
    if (library == "libuv" || library == "libyaml" || library == "systemd") return file ~ /^server\//
    if (library == "CUDA") return file ~ /^kernels\/cuda\// || file ~ /^server\/.*cuda[^\/]*$/
    if (library == "vector intrinsics") return file ~ /^kernels\//
    if (library == "the C++ library") return file ~ /^(proto\/[^\/]*\.(cpp|hpp)|kernels\/cuda\/.*)$/
    if (library == "Python") return file ~ /^client\/python\//
    return 0
}

function may_use(file, target) {
    if (file ~ /^tests\//) return 1
    if (target ~ /^tests\//) return 0
    if (target ~ /^cmake\//) return 1
    if (file ~ /^client\/include\//)
        return target ~ /^client\/include\// || target == "proto/include/topkd_status.h"
    if (file ~ /^client\/examples\//) return target ~ /^client\/(include|examples|topkctl)\//
    if (file ~ /^client\/topkctl\//)
        return target ~ /^client\// || target ~ /^(proto|kernels)\/include\//
    if (file ~ /^client\/lib\//)
        return target ~ /^client\/(include|lib)\// || target ~ /^proto\/include\//
    if (file ~ /^client\//) return target ~ /^client\// || target ~ /^proto\/include\//
    if (file ~ /^proto\/include\//) return target ~ /^proto\/include\//
    if (file ~ /^proto\//) return target ~ /^proto\//
    if (file ~ /^kernels\/include\//) return target ~ /^kernels\/include\//
    if (file ~ /^kernels\/cuda\//) return target ~ /^kernels\//
    if (file ~ /^kernels\//) return target ~ /^kernels\// && target !~ /^kernels\/cuda\//
    if (file ~ /^server\//) return target ~ /^server\// || target ~ /^(proto|kernels)\/include\//
    return 0
}

function refuse(place, text) {
    print place ": " text
    num_refused++
}

# Which file of ours an include of `name` in `file` means: beside it, in its room, else elsewhere;
# among several elsewhere one that is allowed. "" when there is none.
function resolve(file, name,    folder, room, i, found, suffix) {
    folder = file
    sub(/[^\/]*$/, "", folder)
    room = file
    sub(/\/.*/, "", room)
    if (normal(folder name) in is_file) return normal(folder name)
    if (normal(room "/" name) in is_file) return normal(room "/" name)
    suffix = "/" normal(name)
    found = ""
    for (i = 0; i < num_paths; i++) {
        if (substr("/" paths[i], length("/" paths[i]) - length(suffix) + 1) != suffix) continue
        if (index(paths[i], room "/") == 1) return paths[i]
        if (found == "" || !may_use(file, found)) found = paths[i]
    }
    return found
}

{
    match($0, /:[0-9]+:/)
    file = substr($0, 1, RSTART - 1)
    place = substr($0, 1, RSTART + RLENGTH - 2)
    line = substr($0, RSTART + RLENGTH)
    num_includes++
    if (!match(line, /["<][^">]+[">]/)) {
        refuse(place, "an include that this check cannot read: " line)
        next
    }
    quoted = substr(line, RSTART, 1) == "\""
    name = substr(line, RSTART + 1, RLENGTH - 2)
    target = resolve(file, name)
    if (!quoted && (target !~ /\/include\// || target ~ /^tests\//)) target = ""
    if (target != "") {
        if (!may_use(file, target)) refuse(place, "may not include " target)
        next
    }
    if (name == "topkd_generated.h") {
        if (file !~ /^(proto\/[^\/]*\.(cpp|hpp)|tests\/.*)$/)
            refuse(place, "generated code is for the codec in proto/ alone; include topkd_wire.h")
        next
    }
    if (quoted) {
        refuse(place, "no source of ours is named " name "; a library is included with <>")
        next
    }
    stem = name
    if (stem ~ /\//) sub(/[^\/]*$/, "", stem)
    else if (sub(/\.h$/, "", stem) == 0) stem = ""
    if (stem in is_system) next
    library = library_of(name)
    if (library == "")
        refuse(place, "<" name "> is unknown here; if the room may use it, say so in check_rooms.sh")
    else if (!may_use_library(file, library))
        refuse(place, "may not include <" name ">, which is " library)
}

END {
    if (num_includes == 0) {
        print "no include was read"
        exit 1
    }
    if (num_refused > 0) {
        print num_refused " of " num_includes " includes are not allowed"
        exit 1
    }
    print num_includes " includes of " num_paths " files are allowed"
}'
