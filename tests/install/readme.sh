# README's C program is examples/attend.c, to the letter.
# readme.sh ROOT
set -eu
shown=$(mktemp)
trap 'rm -f "$shown"' EXIT
awk '/^```c$/ { on = 1; blocks++; next } /^```$/ { on = 0 } on { print }
     END { exit blocks != 1 }' "$1/README.md" >"$shown"
diff "$shown" "$1/examples/attend.c"
