# From help texts ("command<tab>line", see completions.sh) to a completion for bash, zsh or fish.
# Calls of a shell's own functions are the only thing that differs between the three writers.
BEGIN { FS = "\t" }

$2 ~ /^Commands:/ { in_commands = 1; next }
$2 == "" { in_commands = 0; next }

in_commands && $1 == "-" && match($2, /^  [a-z-]+/) {
    command = substr($2, 3, RLENGTH - 2)
    commands[++num_commands] = command
    rest = substr($2, RLENGTH + 1)
    operand[command] = ""
    if (match(rest, /^ [^ ]+ /)) { # one space: an operand; more: the text
        operand[command] = substr(rest, 2, RLENGTH - 2)
        rest = substr(rest, RLENGTH + 1)
    }
    sub(/^ +/, "", rest)
    text[command] = rest
    next
}

# "  --word ARGUMENT   text", "  -x, --word   text"; a remark "...; --json for programs" counts too.
match($2, /^  (-[a-z], )?--[a-z0-9-]+/) {
    head = substr($2, 3, RLENGTH - 2)
    rest = substr($2, RLENGTH + 1)
    short = ""
    if (head ~ /^-[a-z], /) {
        short = substr(head, 2, 1)
        head = substr(head, 5)
    }
    argument = ""
    if (match(rest, /^ [^ ]+ /)) {
        argument = substr(rest, 2, RLENGTH - 2)
        rest = substr(rest, RLENGTH + 1)
    }
    sub(/^ +/, "", rest)
    if (match(rest, /; --[a-z-]+ /)) {
        add_option($1, "", substr(rest, RSTART + 4, RLENGTH - 5), "", "for programs")
        rest = substr(rest, 1, RSTART - 1)
    }
    add_option($1, short, substr(head, 3), argument, rest)
}

function add_option(command, short, word, argument, about,    i) {
    for (i = 1; i <= num_options[command]; i++)
        if (option_word[command, i] == word)
            return
    i = ++num_options[command]
    option_short[command, i] = short
    option_word[command, i] = word
    option_argument[command, i] = argument
    option_text[command, i] = about
}

# What may follow an option: "files", "folders", words, or "" for anything else.
function values_of(argument) {
    if (argument ~ /^FILE/) return "files"
    if (argument == "DIR") return "folders"
    if (argument == "LEVEL") return "error warn info debug"
    if (argument == "DEVICE") return "cpu auto"
    if (argument ~ /\|/) {
        gsub(/\|/, " ", argument)
        return argument
    }
    return ""
}

function quote(text) {
    gsub(/'/, "'\\''", text)
    return "'" text "'"
}

END {
    if (num_options["-"] == 0 && num_commands == 0) {
        print "completions.awk: no option and no command in the help of " name >"/dev/stderr"
        exit 1
    }
    print (shell == "zsh" ? "#compdef " name "\n" : "") \
        "# Completion of " name " for " shell ", written from its --help."
    if (shell == "bash") write_bash()
    else if (shell == "zsh") write_zsh()
    else if (shell == "fish") write_fish()
    else exit 1
}

# ---- bash --------------------------------------------------------------------------------------

function words_of(command,    i, words) {
    for (i = 1; i <= num_options[command]; i++) {
        words = words (words == "" ? "" : " ") "--" option_word[command, i]
        if (option_short[command, i] != "")
            words = words " -" option_short[command, i]
    }
    return words
}

function bash_values(command,    i, values, pattern) {
    for (i = 1; i <= num_options[command]; i++) {
        if (option_argument[command, i] == "" || (option_word[command, i] in bash_done))
            continue
        bash_done[option_word[command, i]] = 1
        values = values_of(option_argument[command, i])
        pattern = "--" option_word[command, i]
        if (option_short[command, i] != "")
            pattern = pattern " | -" option_short[command, i]
        print "    " pattern ")"
        if (values == "files")
            print "        compopt -o default"
        else if (values == "folders")
            print "        compopt -o dirnames"
        else if (values != "")
            print "        mapfile -t COMPREPLY < <(compgen -W " quote(values) " -- \"$word\")"
        print "        return"
        print "        ;;"
    }
}

function write_bash(    i, all) {
    for (i = 1; i <= num_commands; i++)
        all = all (i == 1 ? "" : " ") commands[i]
    print "# shellcheck shell=bash"
    print "_" name "() {"
    print "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words i"
    print "    local command="
    print "    COMPREPLY=()"
    print "    case $before in"
    bash_values("-")
    for (i = 1; i <= num_commands; i++)
        bash_values(commands[i])
    print "    esac"
    print "    words=" quote(words_of("-") (num_commands > 0 ? all " --help" : ""))
    if (num_commands > 0) {
        print "    for ((i = 1; i < COMP_CWORD; i++)); do"
        print "        case ${COMP_WORDS[i]} in"
        for (i = 1; i <= num_commands; i++) {
            print "        " commands[i] ")"
            print "            command=" commands[i]
            print "            words=" quote(words_of(commands[i]))
            if (operand[commands[i]] ~ /^FILE/)
                print "            [[ $word == -* ]] || compopt -o default"
            print "            break"
            print "            ;;"
        }
        print "        esac"
        print "    done"
        print "    [[ -z $command || $word == -* ]] || return 0"
    }
    print "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")"
    print "}"
    print "complete -F _" name " " name
}

# ---- zsh ---------------------------------------------------------------------------------------

function zsh_text(text) {
    gsub(/\[|\]|:|\\/, "\\\\&", text)
    return text
}

function zsh_options(command, indent,    i, spec, values, tail) {
    for (i = 1; i <= num_options[command]; i++) {
        tail = "[" zsh_text(option_text[command, i]) "]"
        if (option_argument[command, i] != "") {
            values = values_of(option_argument[command, i])
            tail = tail ":" zsh_text(option_argument[command, i]) ":"
            if (values == "files") tail = tail "_files"
            else if (values == "folders") tail = tail "_files -/"
            else if (values != "") tail = tail "(" values ")"
        }
        print indent quote("--" option_word[command, i] tail) " \\"
        if (option_short[command, i] != "")
            print indent quote("-" option_short[command, i] tail) " \\"
    }
}

function write_zsh(    i) {
    print "_" name "() {"
    if (num_commands == 0) {
        print "    _arguments \\"
        zsh_options("-", "        ")
        print "        && return"
    } else {
        print "    local -a commands"
        print "    commands=("
        for (i = 1; i <= num_commands; i++)
            print "        " quote(commands[i] ":" zsh_text(text[commands[i]]))
        print "    )"
        print "    if ((CURRENT == 2)); then"
        print "        _describe command commands"
        print "        return"
        print "    fi"
        print "    shift words"
        print "    ((CURRENT--))"
        print "    case $words[1] in"
        for (i = 1; i <= num_commands; i++) {
            print "    " commands[i] ")"
            print "        _arguments \\"
            zsh_options(commands[i], "            ")
            print "            " (operand[commands[i]] ~ /^FILE/ ? quote("1:" operand[commands[i]] ":_files") : "") \
                " && return"
            print "        ;;"
        }
        print "    esac"
    }
    print "}"
    print "_" name " \"$@\""
}

# ---- fish --------------------------------------------------------------------------------------

function fish_quote(text) {
    gsub(/\\/, "\\\\", text)
    gsub(/'/, "\\'", text)
    return "'" text "'"
}

function fish_options(command,    i, line, values) {
    for (i = 1; i <= num_options[command]; i++) {
        line = "complete -c " name
        if (command != "-")
            line = line " -n " fish_quote("__fish_seen_subcommand_from " command)
        line = line " -l " option_word[command, i]
        if (option_short[command, i] != "")
            line = line " -s " option_short[command, i]
        if (option_argument[command, i] != "") {
            values = values_of(option_argument[command, i])
            if (values == "files") line = line " -r -F"
            else if (values == "folders") line = line " -x -a '(__fish_complete_directories)'"
            else if (values != "") line = line " -x -a " fish_quote(values)
            else line = line " -x"
        }
        print line " -d " fish_quote(option_text[command, i])
    }
}

function write_fish(    i) {
    print "complete -c " name " -f"
    for (i = 1; i <= num_commands; i++) {
        print "complete -c " name " -n __fish_use_subcommand -a " commands[i] " -d " \
            fish_quote(text[commands[i]])
        if (operand[commands[i]] ~ /^FILE/)
            print "complete -c " name " -n " fish_quote("__fish_seen_subcommand_from " commands[i]) " -F"
    }
    fish_options("-")
    for (i = 1; i <= num_commands; i++)
        fish_options(commands[i])
}
