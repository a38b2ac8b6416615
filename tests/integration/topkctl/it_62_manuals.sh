#!/bin/sh
# The manual pages and --help name the same options.
#
# usage: it_62_manuals.sh TOPKCTL TOPKCTL.1 TOPKD TOPKD.8
set -eu
topkctl=$1 topkctl_manual=$2 topkd=$3 topkd_manual=$4

# Options that a page explains: ".It Fl Fl word ..."
options_of_manual() {
    sed -n 's/^\.It Fl Fl \([a-z0-9-]*\).*/\1/p' "$1" | sort -u
}

# Options that a help text explains: lines that begin with --word, or -x, --word
options_of_help() {
    sed -n 's/^  *\(-[a-z], \)\{0,1\}--\([a-z0-9-]*\).*/\2/p' | sort -u
}

# compare NAME: the two lists in the files help and manual
compare() {
    [ -s help ] || { echo "$1: --help names no option"; exit 1; }
    diff -U0 help manual && return
    echo "$1: -- --help (-) and the manual page (+) name different options"
    exit 1
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

commands=$("$topkctl" --help | sed -n 's/^  \([a-z-]*\) .*/\1/p')
[ "$(echo "$commands" | wc -w)" -ge 8 ] || { echo "topkctl --help names too few commands"; exit 1; }
for command in $commands; do
    grep -q "^\.It Cm $command" "$topkctl_manual" || {
        echo "$topkctl_manual does not explain the command $command"
        exit 1
    }
    "$topkctl" "$command" --help
done | options_of_help >help
options_of_manual "$topkctl_manual" >manual
compare topkctl

"$topkd" --help | sed 's/; --json/\n  --json/' | options_of_help >help
options_of_manual "$topkd_manual" >manual
compare topkd
