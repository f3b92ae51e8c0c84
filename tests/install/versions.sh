# The models' library runs with the attention library of its own version alone, and says so;
# programs that use public functions run with either.
# versions.sh PREFIX LIBDIR VERSION WORK-DIRECTORY PUBLIC-PROGRAM MODELS-PROGRAM
set -eu
libraries=$1/$2 version=$3 work=$4
rm -rf "$work"
mkdir -p "$work"
cp -L "$libraries/libhtransformer.so.1" "$libraries/libhtransformer_models.so.1" "$work"
export LC_ALL=C LD_LIBRARY_PATH="$work"
"$6" >"$work/same"

# the same library of another day: a digit of the private version is another one
other=$(echo "$version" | tr '0-9' '1-90')
sed "s/HTRANSFORMER_PRIVATE_$version/HTRANSFORMER_PRIVATE_$other/g" \
    "$libraries/libhtransformer.so.1" >"$work/libhtransformer.so.1"
"$5" >"$work/public"
if "$6" >"$work/other" 2>&1; then
    echo "the models' library runs with another version's libhtransformer"
    exit 1
fi
cat "$work/other"
grep -q "_PRIVATE_$version' not found (required by .*libhtransformer_models" "$work/other"
