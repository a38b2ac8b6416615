# Makes the manual page of the settings:
#   awk -f ../cmake/roff.awk -f manual.awk topkd.yaml topkd.yaml.5.in >topkd.yaml.5
#
# Reads the commented defaults (topkd.yaml) and puts one .Ss for each section and one .It for each
# key in place of the line @SETTINGS@. The comment above a section or key is its text; the last
# comment line of a key, in parentheses, says what is accepted and when a change applies.

function add(line) {
    settings = settings line "\n"
}

function end_list() {
    if (in_list)
        add(".El")
    in_list = 0
}

# The comment gathered so far, as text; the part in parentheses as a line of its own.
function add_comment(    rule) {
    rule = ""
    if (match(comment, /\([^()]*(live|restart)\)$/)) {
        rule = substr(comment, RSTART + 1, RLENGTH - 2)
        comment = substr(comment, 1, RSTART - 1)
        sub(/ +$/, "", comment)
    }
    if (comment != "")
        add(roff(comment))
    if (rule != "") {
        add(".br")
        add("(" rule ")")
    }
    comment = ""
}

FNR == 1 { file++ }

file == 1 && /^ *#/ {
    sub(/^ *# ?/, "")
    comment = comment == "" ? $0 : comment " " $0
    next
}
file == 1 && /^$/ { # the comment at the top belongs to the file
    comment = ""
    next
}
file == 1 && /^[a-z_]+:$/ {
    end_list()
    sub(/:$/, "")
    add(".Ss " $0)
    add_comment()
    next
}
file == 1 && /^  [a-z_]+: / {
    if (!in_list)
        add(".Bl -tag -width Ds")
    in_list = 1
    key = $1
    sub(/:$/, "", key)
    value = $0
    sub(/^  [a-z_]+: */, "", value)
    add(".It Cm " key " No = Li " value)
    add_comment()
    next
}
file == 1 && /^  - / { # an element of a list: the defaults, as they stand
    sub(/^ +/, "")
    add(".Dl " $0)
    next
}
file == 1 {
    print "manual.awk: " FILENAME ":" FNR ": not understood: " $0 >"/dev/stderr"
    exit 1
}

file == 2 && /^@SETTINGS@$/ {
    end_list()
    printf "%s", settings
    next
}
file == 2 { print }
