# Counts the tests in the output of `ctest -V`. A cmocka program is worth the tests that it says it
# ran; any other test counts once, by ctest's verdict. A program that failed without saying which
# of its tests did (it crashed, it ran out of time) counts as one failure.
# Prints what the failed ones wrote, each test's verdict, then: PASSED FAILED SKIPPED

# the number in "[  PASSED  ] name: 12 test(s)."; the two streams of a test may share a line
function said(line, word) {
    if (!match(line, "\\[ *" word " *\\] ")) return 0
    line = substr(line, RSTART + RLENGTH)
    if (!match(line, /[0-9]+ test\(s\)/)) return 0
    return substr(line, RSTART, RLENGTH) + 0
}
/^[0-9]+: / {
    id = $1 + 0
    p[id] += said($0, "PASSED")
    f[id] += said($0, "FAILED")
    s[id] += said($0, "SKIPPED")
    # of cmocka's lines only those of tests that did not end well
    if (/\[ RUN      \]/) {
        running[id] = $0 "\n"
    } else if (/\[       OK \]/) {
        running[id] = ""
    } else {
        text[id] = text[id] running[id] $0 "\n"
        running[id] = ""
    }
}
/^ *[0-9]+\/[0-9]+ Test +#[0-9]+:/ {
    id = $0
    sub(/^[^#]*#/, "", id)
    id = id + 0
    silent = p[id] + f[id] + s[id] == 0
    if (/\*\*\*Skipped/ || /\*\*\*Not Run \(Disabled\)/) {
        skipped += silent
    } else if (/ Passed +[0-9.]+ sec/) {
        passed += silent
    } else {
        failed += f[id] == 0
        printf "%s", text[id]
    }
    passed += p[id]
    failed += f[id]
    skipped += s[id]
    print
}
END { printf "%d %d %d\n", passed, failed, skipped }
