# Which names a library defines for others to see.
# symbols.sh NM shared|static LIBRARY HEADER...
# shared: exactly the functions of the headers. static: these, and beside them only hti_ (in C++
# names too: what src/cuda shares within itself is not extern "C"), and what the compiler adds
# where C++ catches exceptions (DW.ref) and for a named critical section (.gomp_critical).
set -eu
nm=$1 kind=$2 library=$3
shift 3
case $kind in
shared) found=$("$nm" -D --defined-only "$library") ;;
static) found=$("$nm" -gC --defined-only "$library") ;;
esac
found=$(printf '%s\n' "$found" | sed -n 's/^[0-9a-f]* [A-Za-z] //p' | sort -u)
public=$(sed -n 's/^HT_API .*[ *]\(ht_[a-z_0-9]*\)(.*/\1/p' "$@" | sort -u)
[ -n "$public" ] && [ -n "$found" ]

for name in $public; do
    printf '%s\n' "$found" | grep -qx "$name" || { echo "declared but not defined: $name"; exit 1; }
done
others=$(printf '%s\n' "$found" | grep -vx "$public" || true)
ours='^hti_\|^DW\.ref\.\|^\.gomp_critical_user_hti_'
[ "$kind" = shared ] || others=$(printf '%s\n' "$others" | grep -v "$ours" || true)
if [ -n "$others" ]; then
    printf 'not ours to define:\n%s\n' "$others"
    exit 1
fi
echo "$kind: $(printf '%s\n' "$public" | wc -l) public functions"
