#!/bin/sh
# Only topkd_* leaves the library, and all that topkd.h declares does.
#
#   symbols_test.sh LIBTOPKD_SO TOPKD_H
set -eu

exported=$(nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort -u)
strangers=$(printf '%s\n' "$exported" | grep -v -e '^topkd_' -e '^TOPKD_0$' || true)
if [ -n "$strangers" ]; then
    printf 'exported beside topkd_*:\n%s\n' "$strangers" >&2
    exit 1
fi
declared=$(tr '\n' ' ' <"$2" | grep -o 'TOPKD_API [^;]*;' | grep -o 'topkd_[a-z_0-9]* *(' |
    tr -d ' (' | sort -u)
[ -n "$declared" ] || {
    echo "no declaration found in $2" >&2
    exit 1
}
difference=$(printf '%s\n%s\n' "$declared" "$(printf '%s\n' "$exported" | grep '^topkd_')" | sort |
    uniq -u)
if [ -n "$difference" ]; then
    printf 'declared but not exported, or the other way round:\n%s\n' "$difference" >&2
    exit 1
fi
printf 'symbols_test: %s symbols\n' "$(printf '%s\n' "$declared" | wc -l)"
