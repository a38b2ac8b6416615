#!/usr/bin/env bash
# What libtopkd-dev gives is enough to build a client, and its manual pages lead somewhere.
#
#   dev_package_test.sh ROOT DEBS WORK
#
# Unpacks the packages of DEBS into WORK and builds the example of ROOT against them.
set -euo pipefail
root=$1 debs=$2 tree=$3/unpacked

fail() {
    echo "dev_package_test: $*" >&2
    exit 1
}

for deb in "$debs"/lib*.deb; do
    dpkg-deb -x "$deb" "$tree"
done
folder=$(echo "$tree"/usr/lib/*/pkgconfig)
read -ra flags <<<"$(PKG_CONFIG_PATH=$folder pkg-config --cflags --libs topkd)"
cc -std=c11 -Wall -Wextra -Werror "$root/client/examples/first_client.c" "${flags[@]}" \
    -Wl,-rpath-link,"$(dirname "$folder")" -o "$tree/first_client" || fail "the example does not build"
needed=$(readelf -d "$tree/first_client")
[[ $needed == *NEEDED*'[libtopkd.so.0]'* ]] ||
    fail "the example does not want libtopkd.so.0"

# Every function has a page of its name.
num_pages=0
while read -r function; do
    page=$(cd "$tree/usr/share/man" && mandoc -Tascii "man3/$function.3.gz" | sed 's/.\x08//g')
    grep -q "$function(" <<<"$page" || fail "man $function shows nothing of it"
    num_pages=$((num_pages + 1))
done < <(sed -n 's/^TOPKD\{0,1\}_API \([^(]*\)(.*/\1/p' "$tree"/usr/include/topk*.h |
    grep -o '[a-z_0-9]*$')
((num_pages > 40)) || fail "only $num_pages functions were found in the headers"
echo "dev_package_test: a client builds, $num_pages functions have a manual page"
