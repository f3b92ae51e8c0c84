# What a library or program needs to be loaded is among what it may need: one more is a decision.
# needed.sh FILE PATTERN: names as in libpng16.so.16, matched without lib and .so...
set -eu
needed=$(LC_ALL=C readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
printf '%s\n' "$needed" | grep -q '^libc\.'
others=$(printf '%s\n' "$needed" | sed 's/^lib//; s/\.so.*//' | grep -Evx "$2" || true)
if [ -n "$others" ]; then
    printf '%s must not need:\n%s\n' "$1" "$others"
    exit 1
fi
echo $needed
