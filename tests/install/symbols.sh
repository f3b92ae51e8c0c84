# Which names a library defines for others to see.
# symbols.sh NM shared|static LIBRARY HEADER
# shared: exactly the functions of the header. static: these, and beside them only hti_.
set -eu
nm=$1 kind=$2 library=$3 header=$4
if [ "$kind" = shared ]; then
    found=$("$nm" -D --defined-only "$library" | awk '{ print $NF }' | sort -u)
else
    found=$("$nm" -g --defined-only "$library" | awk 'NF == 3 { print $3 }' | sort -u)
fi
public=$(sed -n 's/^HT_API .*[ *]\(ht_[a-z_0-9]*\)(.*/\1/p' "$header" | sort -u)
[ -n "$public" ] && [ -n "$found" ]

for name in $public; do
    printf '%s\n' "$found" | grep -qx "$name" || { echo "declared but not defined: $name"; exit 1; }
done
others=$(printf '%s\n' "$found" | grep -vx "$public" || true)
[ "$kind" = shared ] || others=$(printf '%s\n' "$others" | grep -v '^hti_' || true)
if [ -n "$others" ]; then
    printf 'not ours to define:\n%s\n' "$others"
    exit 1
fi
echo "$kind: $(printf '%s\n' "$public" | wc -l) public functions"
