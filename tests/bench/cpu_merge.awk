# Merges the lines of several passes of cpu_select.sh: of each selection the least time, with the
# least floor that any line saw for the same scores to read (threads, rows, width, lengths, dtype).
# Other work on the machine can only make either longer.
# Fields: 1 date, 2 commit, 3 cpu, 4 family, 5 isa, 6 threads, 7 rows, 8 width, 9 k, 10 lengths,
# 11 order, 12 ties, 13 select_us, 14 floor_us, 15 x_floor, 16 on: counts, 22 exact, 23 dtype,
# 24 on: how busy the machine was while the line was measured.
BEGIN { FS = OFS = "," }
$1 == "date" { if (!head) print; head = 1; next }
{
    key = $4 FS $5 FS $6 FS $7 FS $8 FS $9 FS $10 FS $11 FS $12 FS $23
    shape = $6 FS $7 FS $8 FS $10 FS $23
    if (!(key in line)) { order[++count] = key; least[key] = $13 }
    if ($13 + 0 <= least[key] + 0) { line[key] = $0; least[key] = $13 }
    if ($22 != "yes") wrong[key] = 1
    if ($14 != "" && (!(shape in floor) || $14 + 0 < floor[shape] + 0)) floor[shape] = $14
}
END {
    for (i = 1; i <= count; i++) {
        $0 = line[order[i]]
        shape = $6 FS $7 FS $8 FS $10 FS $23
        if ($14 != "") { $14 = floor[shape]; $15 = sprintf("%.3f", $13 / $14) }
        if (order[i] in wrong) $22 = "NO"
        print
    }
}
