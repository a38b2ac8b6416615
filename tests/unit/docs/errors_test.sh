#!/bin/sh
# docs/errors.md has every status of topkd_status.h but TOPKD_OK, in order, with its number, text and
# hint as they are there, and something to say beyond them; and none that does not exist.
#
# usage: errors_test.sh ROOT
set -eu
cd "$1"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# name TAB number TAB text TAB hint
awk '
/^#define TOPKD_STATUS_TABLE/ { inside = 1; next }
inside { sub(/ *\\$/, ""); sub(/^ */, ""); all = all $0 " " }
inside && !/[,)] *$/ { inside = 0 }
/^enum topkd_status/ { exit }
END {
    while (match(all, /X\([^"]*"[^"]*", *"[^"]*"\)/)) {
        split(substr(all, RSTART + 2, RLENGTH - 3), part, "\"")
        split(part[1], name, ", *")
        printf "%s\t%s\t%s\t%s\n", name[1], name[2], part[2], part[4]
        all = substr(all, RSTART + RLENGTH)
    }
}' proto/include/topkd_status.h | grep -v '^TOPKD_OK	' >"$folder/table"
[ "$(wc -l <"$folder/table")" -ge 20 ] || { echo "too few statuses were found"; exit 1; }
[ "$(wc -l <"$folder/table")" -eq "$(($(grep -c '^ *X(TOPKD_' proto/include/topkd_status.h) - 1))" ] ||
    { echo "not every status was understood"; exit 1; }

awk -F'\t' '
function capital(text) { return toupper(substr(text, 1, 1)) substr(text, 2) }
{ printf "## %s (%s)\n**%s.** %s.\n", $1, $2, capital($3), capital($4) }' "$folder/table" >"$folder/wanted"
awk '/^## TOPKD_/ { print; heading = 1; next }
     heading && /^\*\*/ { print; heading = 0 }' docs/errors.md >"$folder/found"
diff -u "$folder/wanted" "$folder/found" || {
    echo "docs/errors.md (+) is not what proto/include/topkd_status.h says (-)"
    exit 1
}
awk '/^## / { if (name != "" && lines < 2) { print name " has nothing beyond its hint"; bad = 1 }
              name = /^## TOPKD_/ ? $2 : ""; lines = 0; next }
     NF { lines++ }
     END { exit bad }' docs/errors.md
echo "$(wc -l <"$folder/table") statuses are explained"
