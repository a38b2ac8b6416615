# Makes docs/configuration.md of the commented defaults: awk -f config/reference.awk config/topkd.yaml
#
# A section becomes a heading, a key an entry with its default, its text, and what is accepted. The
# comments of topkd.yaml come from server/settings_table.h, so this does too.
function flush_comment(    rule) {
    rule = ""
    if (match(comment, /\([^()]*(live|restart)\)$/)) {
        rule = substr(comment, RSTART + 1, RLENGTH - 2)
        comment = substr(comment, 1, RSTART - 1)
        sub(/ +$/, "", comment)
    }
    text = comment
    accepted = rule
    comment = ""
}

# Between backquotes: what stands in a file as it is.
function code(value) { return "`" value "`" }

BEGIN {
    print "# Configuration"
    print ""
    print "Every setting, from [server/settings_table.h](../server/settings_table.h) by way of [config/topkd.yaml](../config/topkd.yaml); `config/reference.awk` writes this page, and a test compares it. A file names only what differs from the defaults. *live*: `SIGHUP` changes it in the running daemon. *restart*: it needs a new one. How to write values is in [config/README.md](../config/README.md), which to change and why in [tuning.md](tuning.md)."
}
/^ *#/ {
    sub(/^ *# ?/, "")
    comment = comment == "" ? $0 : comment " " $0
    next
}
/^$/ { # the comment at the top belongs to the file
    comment = ""
    next
}
/^[a-z_]+:/ {
    section = $1
    sub(/:$/, "", section)
    value = $0
    sub(/^[a-z_]+: */, "", value)
    flush_comment()
    printf "\n## %s\n\n%s%s\n", section, text, accepted == "" ? "" : " (" accepted ")"
    if (value != "")
        printf "\nDefault: %s\n", code(value)
    else
        print ""
    next
}
/^  [a-z_]+: / {
    key = $1
    sub(/:$/, "", key)
    value = $0
    sub(/^  [a-z_]+: */, "", value)
    flush_comment()
    printf "- **`%s.%s`** = %s (%s)<br>%s\n", section, key, code(value), accepted, text
    next
}
/^  - / {
    sub(/^ +/, "")
    printf "    %s\n", $0
    next
}
{
    print "reference.awk: " FILENAME ":" FNR ": not understood: " $0 >"/dev/stderr"
    exit 1
}
