# The .deb packages: which there are, where their files go, what they need.
# packages.sh CPACK BUILD-DIRECTORY WORK-DIRECTORY VERSION
set -eu
cpack=$1 build=$2 work=$3 version=$4
command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || {
    echo "this machine makes no .deb packages (dpkg-dev)"
    exit 77
}
none() { # WHY: there must be no lines
    if grep .; then
        echo "$1"
        exit 1
    fi
}
rm -rf "$work"
mkdir -p "$work"
(cd "$build" && "$cpack" -G DEB -B "$work" >"$work/log") || {
    cat "$work/log"
    exit 1
}
cd "$work"
arch=$(dpkg --print-architecture)
for name in htransformer libhtransformer1 libhtransformer-dev libhtransformer-models1 \
    libhtransformer-models-dev; do
    deb=${name}_${version}_$arch.deb
    [ -e "$deb" ] || { echo "there is no $deb"; exit 1; }
    dpkg-deb -c "$deb" | awk '$6 !~ "/$" { print $6 }' >"$name.files"
    [ -s "$name.files" ]
    sed '/^\.\/usr\/\(bin\|include\|lib\|share\)\//d' "$name.files" | none "not where files go"
    dpkg-deb -f "$deb" Depends | tr ',' '\n' | sed 's/^ //' >"$name.needs"
    echo "$name: $(wc -l <"$name.files") files, needs $(paste -sd, "$name.needs")"
done
[ "$(ls ./*.deb | wc -l)" = 5 ]

# at_most BYTES PACKAGE: no file of it is larger
at_most() {
    dpkg-deb -c "$2_${version}_$arch.deb" | awk -v most="$1" '$3 > most { print $3, $6 }' |
        none "larger than $1 bytes"
}
at_most 30000000 libhtransformer1 # with CUDA for two architectures
at_most 5000000 htransformer

# each file in one package, and in the right one
sort ./*.files | uniq -d | none "in two packages"
grep -q '/bin/htransformer$' htransformer.files
grep -q '/libhtransformer\.so\.1$' libhtransformer1.files
grep -q '/libhtransformer_models\.so\.1$' libhtransformer-models1.files
for name in htransformer.h libhtransformer.so libhtransformer.a htransformer.pc; do
    grep -q "/$name\$" libhtransformer-dev.files
done
for name in htransformer_models.h libhtransformer_models.so libhtransformer_models.a \
    htransformer-models.pc; do
    grep -q "/$name\$" libhtransformer-models-dev.files
done

# the attention needs the compiler's runtime; ours need ours of the same version
sed '/^libc6 \|^libgomp1 \|^libgcc-s1 \|^libomp5/d' libhtransformer1.needs | none "not wanted"
[ "$(cat libhtransformer-dev.needs)" = "libhtransformer1 (= $version)" ]
grep -qF "libhtransformer1 (= $version)" libhtransformer-models1.needs
grep -qF "libhtransformer-models1 (= $version)" htransformer.needs
