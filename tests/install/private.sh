# Of the private functions the attention library shows those that the models' library needs, no
# other; the program needs none.
# private.sh NM ATTENTION MODELS PROGRAM
set -eu
nm=$1
private() { "$nm" -D "$2" "$3" | sed -n 's/^[0-9a-f ]* [A-Z] \(hti_[a-z_0-9]*\).*/\1/p' | sort; }
shown=$(private "$nm" --defined-only "$2") needed=$(private "$nm" --undefined-only "$3")
[ -n "$needed" ]
if [ "$shown" != "$needed" ]; then
    printf 'marked HTI_SHARED:\n%s\nneeded by the models:\n%s\n' "$shown" "$needed"
    exit 1
fi
[ -z "$(private "$nm" --undefined-only "$4")" ]
"$nm" -D --undefined-only "$4" | grep -q ' ht_'
echo "$(printf '%s\n' "$shown" | wc -l) private functions"
