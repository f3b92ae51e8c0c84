# The installed program finds its libraries by itself, also where the whole prefix was moved.
# program.sh PREFIX BINDIR VERSION MOVED-PREFIX
set -eu
rm -rf "$4"
cp -r "$1" "$4"
unset LD_LIBRARY_PATH
[ "$("$4/$2/htransformer" --version)" = "htransformer $3" ]
found=$(ldd "$4/$2/htransformer" | grep libhtransformer)
echo "$found"
[ "$(echo "$found" | grep -c "$4")" = 2 ]
