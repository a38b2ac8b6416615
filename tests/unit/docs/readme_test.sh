#!/bin/sh
# What the README files say is still there: the C example in README.md is the text of
# client/examples/first_client.c, and every relative link of every README leads to something.
#
# usage: readme_test.sh ROOT
set -eu
cd "$1"
failed=0

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# shellcheck disable=SC2016 # backquotes are Markdown's
sed -n '/^```c$/,/^```$/{/^```/d;p}' README.md >"$folder/example.c"
[ -s "$folder/example.c" ] || { echo "README.md has no C example"; exit 1; }
diff -u client/examples/first_client.c "$folder/example.c" || {
    echo "README.md: the example is not client/examples/first_client.c"
    failed=1
}

# Links as [text](target) and ![text](target), code blocks left out.
find . -name README.md -not -path './build*' -not -path './.git/*' | sort >"$folder/files"
num_links=0
while read -r file; do
    # shellcheck disable=SC2016
    sed '/^```/,/^```$/d' "$file" | grep -o '](\([^)]*\))' | sed 's/^](//; s/)$//; s/#.*//' \
        >"$folder/links" || true
    while read -r link; do
        case $link in
        '' | http://* | https://*) continue ;;
        esac
        num_links=$((num_links + 1))
        if [ ! -e "$(dirname "$file")/$link" ]; then
            echo "$file: nothing at $link"
            failed=1
        fi
    done <"$folder/links"
done <"$folder/files"
[ "$num_links" -gt 20 ] || { echo "only $num_links links were found"; failed=1; }
[ "$failed" -eq 0 ] && echo "the example is current, $num_links links lead somewhere"
exit "$failed"
