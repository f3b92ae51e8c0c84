# Builds and runs a program that knows the library only as installed.
# outside.sh WAY PREFIX WORK-DIRECTORY VERSION LIBDIR; the tools come in CC, CXX, PKG_CONFIG, CMAKE
set -eu
way=$1 prefix=$2 work=$3 version=$4 libdir=$5
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$work"
mkdir -p "$work"
cd "$work"
strict="-Wall -Wextra -Werror"

# the program ran, says 1 and the version, and is linked the way it should be
check() {
    output=$(LD_LIBRARY_PATH="$prefix/$libdir" "$1")
    echo "$output"
    [ "$output" = "htransformer $version: z = 1" ]
    needed=$(LC_ALL=C readelf -d "$1" | grep -c 'NEEDED.*libhtransformer' || true)
    case $way in
    *static) [ "$needed" = 0 ] ;;
    *) [ "$needed" = 1 ] ;;
    esac
}

pkg() { PKG_CONFIG_PATH="$1/$libdir/pkgconfig" "$PKG_CONFIG" "$2" "$3" htransformer; }

case $way in
pkg_config_shared)
    [ "$(pkg "$prefix" --modversion --silence-errors)" = "$version" ]
    eval "\"\$CC\" -std=c17 $strict \"$here/outside.c\" -o program $(pkg "$prefix" --cflags --libs)"
    check ./program
    ;;
pkg_config_static)
    # a moved prefix that holds the static library alone
    cp -r "$prefix" moved
    rm "moved/$libdir"/libhtransformer.so*
    eval "\"\$CC\" -std=c17 $strict $(pkg "$PWD/moved" --cflags --silence-errors)" \
        "\"$here/outside.c\" -o program $(pkg "$PWD/moved" --static --libs)"
    check ./program
    ;;
cmake_shared | cmake_static)
    target=htransformer::htransformer
    [ "$way" = cmake_shared ] || target=htransformer::static
    "$CMAKE" -S "$here/outside" -B . -DCMAKE_PREFIX_PATH="$prefix" -DVERSION="$version" \
        -DTARGET=$target -DCMAKE_C_COMPILER="$CC"
    "$CMAKE" --build .
    check ./program
    ;;
cxx_header)
    # the header is C++ too, and so is the program
    for standard in 11 14 17 20; do
        "$CXX" -std=c++$standard -Wall -Wextra -Werror -pedantic-errors -fsyntax-only \
            -I"$prefix/include" "$here/header.cc"
    done
    eval "\"\$CXX\" -std=c++20 -Wall -Werror -x c++ \"$here/outside.c\" -x none -o program" \
        "$(pkg "$prefix" --cflags --libs)"
    check ./program
    ;;
*)
    echo "no such way: $way"
    exit 1
    ;;
esac
