#!/bin/sh
# Writes a shell completion from what a program says of itself with --help, so that no list of its
# options is kept twice.
#
#   completions.sh SHELL NAME PROGRAM     SHELL is bash, zsh or fish; NAME is topkd or topkctl
#
# PROGRAM --help has lines "  --option ARGUMENT   text", or under "Commands:" lines
# "  command OPERAND   text", and then PROGRAM COMMAND --help the options of each.
set -eu
shell=$1 name=$2 program=$3
here=$(dirname "$0")

# Lines "command<tab>line" of all help texts; command is - for the program itself.
helps() {
    "$program" --help | sed 's/^/-\t/'
    for command in $("$program" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'); do
        "$program" "$command" --help | sed "s/^/$command\t/"
    done
}

helps | awk -v shell="$shell" -v name="$name" -f "$here/completions.awk"
