#!/usr/bin/env bash
# The shells' completions offer exactly what --help names: asked in bash, zsh and fish themselves.
#
#   completions_test.sh COMPLETIONS BIN
#
# COMPLETIONS is the build's folder with NAME.SHELL, BIN the one with the programs.
set -euo pipefail
completions=$1 bin=$2
PATH=$bin:$PATH

fail() {
    echo "completions_test: $*" >&2
    exit 1
}

commands_of() {
    topkctl --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'
}

# Long options that a help text names, also in remarks.
options_of() {
    "$@" --help | grep -o -- '^  \(-[a-z], \)\?--[a-z0-9-]*\|; --[a-z-]*' | grep -o -- '--[a-z0-9-]*' |
        sort -u
}

# ---- What each shell offers after the words given; the last one is being typed --------------------

offers_bash() {
    # shellcheck disable=SC2016 # expanded in the shell under test
    bash --norc -c 'source "$1"; name=$2; shift 2; compopt() { :; }
        COMP_WORDS=("$name" "$@"); COMP_CWORD=$#; "_$name"; printf "%s\n" "${COMPREPLY[@]}"' \
        bash "$completions/$1.bash" "$@"
}

# What the completion hands to zsh's own functions: "--word[text]..." and "command:text".
offers_zsh() {
    # shellcheck disable=SC2016
    zsh -f -c 'file=$1; shift; words=("$@"); CURRENT=$#
        _arguments() { print -rl -- "${@%%[\[:]*}" }
        _describe() { print -rl -- "${commands[@]%%:*}" }
        source "$file"' zsh "$completions/$1.zsh" "$@"
}

offers_fish() {
    # shellcheck disable=SC2016
    fish --no-config -c 'source $argv[1]; complete -C "$argv[2]"' "$completions/$1.fish" "$*" |
        cut -f 1
}

# same TEXT EXPECTED OFFERED
same() {
    [[ -n $2 ]] || fail "$1: --help names nothing"
    diff <(sort -u <<<"$2") <(sort -u <<<"$3") >&2 ||
        fail "$1: -- --help (<) and the completion (>) differ"
}

main() {
    local shell command
    for shell in bash zsh fish; do
        same "topkd in $shell" "$(options_of topkd)" "$("offers_$shell" topkd -- | grep -- '^--')"
        same "topkctl in $shell" "$(commands_of)" "$("offers_$shell" topkctl '' | grep -v '^-')"
        for command in $(commands_of); do
            same "topkctl $command in $shell" "$(options_of topkctl "$command")" \
                "$("offers_$shell" topkctl "$command" -- | grep -- '^--')"
        done
    done
    same "values in bash" $'any\nindex\nvalue' "$(offers_bash topkctl select f.npy --order '')"
    same "values in fish" $'any\nindex\nvalue' "$(offers_fish topkctl select f.npy --order '')"
    same "one that was begun" --deterministic "$(offers_bash topkctl select --det)"
    echo "completions_test: bash, zsh and fish offer what --help names"
}

main
