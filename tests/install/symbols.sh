# Which names a library defines for others to see.
# symbols.sh NM shared|static LIBRARY HEADER NODE
# shared: exactly the functions of the header, each in a version NODE_..., and the private ones
# (hti_), if any, in a version ..._PRIVATE_.... static: the functions of the header, and beside them
# only hti_ (in C++ names too: what src/cuda shares within itself is not extern "C", and what it
# compiles for two types lies in bf16_kernels or f16_kernels), and what the
# compiler adds where C++ catches exceptions (DW.ref) and for a named critical section
# (.gomp_critical).
set -eu
nm=$1 kind=$2 library=$3 header=$4 node=$5
case $kind in
shared) found=$("$nm" -D --defined-only --with-symbol-versions "$library") ;;
static) found=$("$nm" -gC --defined-only "$library") ;;
esac
found=$(printf '%s\n' "$found" | sed -n 's/^[0-9a-f]* [B-Z] //p' | sort -u)
[ "$kind" = static ] || unversioned=$(printf '%s\n' "$found" | grep -v "@@${node}_[0-9.]*$" |
    grep -v '^hti_[a-z_0-9]*@@[A-Z]*_PRIVATE_[0-9.]*$' || true)
if [ -n "${unversioned:-}" ]; then
    printf 'in no version of this library:\n%s\n' "$unversioned"
    exit 1
fi
found=$(printf '%s\n' "$found" | sed 's/@.*//')
public=$(sed -n 's/^HT_API .*[ *]\(ht_[a-z_0-9]*\)(.*/\1/p' "$header" | sort -u)
[ -n "$public" ] && [ -n "$found" ]

for name in $public; do
    printf '%s\n' "$found" | grep -qx "$name" || {
        echo "declared but not defined, or not in cmake/*.map.in (python3 scripts/api.py): $name"
        exit 1
    }
done
others=$(printf '%s\n' "$found" | grep -vx "$public" || true)
others=$(printf '%s\n' "$others" |
    grep -v '^\(b\{0,1\}f16_kernels::\)\{0,1\}hti_\|^DW\.ref\.\|^\.gomp_critical_user_hti_' || true)
if [ -n "$others" ]; then
    printf 'not ours to define:\n%s\n' "$others"
    exit 1
fi
echo "$kind: $(printf '%s\n' "$public" | wc -l) public functions"
