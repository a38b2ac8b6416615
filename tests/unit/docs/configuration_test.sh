#!/bin/sh
# docs/configuration.md is what config/reference.awk makes of config/topkd.yaml, which the daemon
# itself writes (settings_test), and has every key of it.
#
# usage: configuration_test.sh ROOT
set -eu
cd "$1"
awk -f config/reference.awk config/topkd.yaml | diff -u docs/configuration.md - || {
    echo "docs/configuration.md is old: awk -f config/reference.awk config/topkd.yaml >docs/configuration.md"
    exit 1
}
keys=$(grep -c '^  [a-z_]*: ' config/topkd.yaml)
# shellcheck disable=SC2016 # backquotes are Markdown's
explained=$(grep -c '^- \*\*`[a-z_.]*`\*\* = ' docs/configuration.md)
if [ "$keys" -le 30 ] || [ "$keys" -ne "$explained" ]; then
    echo "config/topkd.yaml has $keys keys, docs/configuration.md explains $explained"
    exit 1
fi
echo "$keys settings are explained"
