# What makes manual pages from other texts, for awk -f roff.awk -f SCRIPT.

# One sentence a line, no line longer than 78 characters, as mdoc wants it; a backslash is roff's
# own, and so is a word that begins with a point or a quote where a line begins.
function roff(text,    words, n, i, line, out) {
    gsub(/\\/, "\\e", text)
    n = split(text, words, " ")
    for (i = 1; i <= n; i++) {
        if (words[i] ~ /^[.\047]/) words[i] = "\\&" words[i]
        if (line != "" && (line ~ /\.$/ || length(line) + 1 + length(words[i]) > 78)) {
            out = out line "\n"
            line = ""
        }
        line = line == "" ? words[i] : line " " words[i]
    }
    return out line
}
