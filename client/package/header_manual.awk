# Makes a manual page of section 3 from a public header, so that its text is kept once:
#   awk -v name=topkd -v about="..." -v date="..." -v header=topkd.h \
#       -v see="topk_select 3,topkd 8" -f ../../cmake/roff.awk -f header_manual.awk HEADER
#
# The header's first comment becomes the description, each "---- title ----" a subsection, each
# comment with the code below it the code and then the text. In comments a blank line ends a
# paragraph, "- " begins an item, and other lines that are indented stand as they are.

function literal(line) {
    gsub(/\\/, "\\e", line)
    gsub(/\t/, "        ", line)
    return (line ~ /^[.\047]/ ? "\\&" : "") line "\n"
}

function end_paragraph() {
    if (paragraph != "")
        printf "%s", (in_list || is_first ? "" : ".Pp\n") roff(paragraph) "\n"
    is_first = is_first && paragraph == ""
    paragraph = ""
}

function end_list() {
    end_paragraph()
    if (in_list)
        print ".El"
    in_list = 0
}

function end_literal() {
    if (in_literal)
        print ".Ed"
    in_literal = 0
}

# The text of a comment, a line each in text[1..num_text], without its frame.
function print_text(    i, line) {
    for (i = 1; i <= num_text; i++) {
        line = text[i]
        if (line ~ /^  / && !in_list) {
            end_paragraph()
            if (!in_literal)
                print ".Bd -literal"
            in_literal = 1
            printf "%s", literal(line)
            continue
        }
        end_literal()
        if (line == "")
            end_list()
        else if (line ~ /^- /) {
            end_paragraph()
            if (!in_list)
                print ".Bl -bullet"
            in_list = 1
            print ".It"
            paragraph = substr(line, 3)
        } else {
            if (in_list && line !~ /^  /)
                end_list()
            sub(/^ +/, "", line)
            paragraph = paragraph == "" ? line : paragraph " " line
        }
    }
    end_literal()
    end_list()
    num_text = 0
}

function print_code() {
    if (code != "") {
        print ".Bd -literal"
        printf "%s", code
        print ".Ed"
    }
    code = ""
}

# Code first, then what was said above it.
function end_block() {
    if (!seen_description)
        return
    print_code()
    print_text()
}

function add_text(line) {
    sub(/^ \*\/$/, "", line)
    sub(/ *\*\/$/, "", line)
    sub(/^ ?\* ?/, "", line)
    sub(/^\/\* ?/, "", line)
    text[++num_text] = line
}

BEGIN {
    print ".\\\" Made from a header by header_manual.awk."
    print ".Dd " date
    print ".Dt " toupper(name) " 3"
    print ".Os"
    print ".Sh NAME\n.Nm " name "\n.Nd " about
}

# The guard, what C++ needs, and macros for visibility are no part of the interface.
/^#(if|endif|include|pragma)/ || /^extern "C"/ || /^#define [A-Z_]+_(H|API)( |$)/ { next }
/^}$/ && !in_code { next }

in_comment {
    add_text($0)
    if (/\*\/$/) {
        in_comment = 0
        if (!seen_description) {
            print ".Sh SYNOPSIS\n.In " header "\n.Sh DESCRIPTION"
            seen_description = 1
            num_text = without_title(num_text)
            is_first = 1
            print_text()
            print ".Sh INTERFACE"
        }
    }
    next
}

# The first paragraph, "name.h - what it is", repeats NAME.
function without_title(n,    i, skip) {
    while (skip < n && text[skip + 1] == "")
        skip++
    while (skip < n && text[skip + 1] != "")
        skip++
    while (skip < n && text[skip + 1] == "")
        skip++
    for (i = skip + 1; i <= n; i++)
        text[i - skip] = text[i]
    return n - skip
}

!in_code && /^\/\* ---- .* -+ \*\/$/ {
    end_block()
    sub(/^\/\* ---- /, "")
    sub(/ -+ \*\/$/, "")
    print ".Ss " $0
    next
}

!in_code && /^\/\*/ {
    end_block()
    add_text($0)
    in_comment = !/\*\/$/
    next
}

/^$/ {
    if (in_code && depth == 0) {
        in_code = 0
        end_block()
    } else if (in_code)
        code = code "\n"
    next
}

{
    # Lines that go on below a declaration move with it.
    if (match($0, /^[A-Z]+_API /)) {
        moved = RLENGTH
        $0 = substr($0, moved + 1)
    } else if (depth == 0 && moved > 0 && /^ /)
        $0 = substr($0, moved + 1)
    else
        moved = 0
    in_code = 1
    code = code literal($0)
    opened = gsub(/{/, "{")
    closed = gsub(/}/, "}")
    depth += opened - closed
}

END {
    end_block()
    if (!seen_description) {
        print "header_manual.awk: no comment at the top" >"/dev/stderr"
        exit 1
    }
    num_see = split(see, pages, ",")
    print ".Sh SEE ALSO"
    for (i = 1; i <= num_see; i++)
        print ".Xr " pages[i] (i < num_see ? " ," : "")
}
