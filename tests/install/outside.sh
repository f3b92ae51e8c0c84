# Builds and runs a program that knows a library only as installed (subdirectory: as a folder of its
# own project).
# outside.sh WAY attention|models PREFIX WORK-DIRECTORY VERSION LIBDIR; the tools come in CC, CXX,
# PKG_CONFIG, CMAKE. Ends with 77 where the machine lacks what the way needs.
set -eu
way=$1 library=$2 prefix=$3 work=$4 version=$5 libdir=$6
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$work"
mkdir -p "$work"
cd "$work"
strict="-Wall -Wextra -Werror"
case $library in
attention) package=htransformer source=$here/outside.c says="z = 1" shared=1 target=htransformer \
    static=static components= ;;
models) package=htransformer-models source=$here/outside_models.c says="3 tokens" shared=2 \
    target=models static=models_static components=models ;;
esac

# the program ran, says what it should, and is linked the way it should be
check() {
    output=$(LD_LIBRARY_PATH="$prefix/$libdir" "$1")
    echo "$output"
    [ "$output" = "htransformer $version: $says" ]
    needed=$(LC_ALL=C readelf -d "$1" | grep -c 'NEEDED.*libhtransformer' || true)
    case $way in
    *static | *alone) [ "$needed" = 0 ] ;;
    *) [ "$needed" = "$shared" ] ;;
    esac
}

pkg() { PKG_CONFIG_PATH="$1/$libdir/pkgconfig" "$PKG_CONFIG" "$2" "$3" $package; }

# a moved prefix that holds the static libraries alone
move() {
    cp -r "$prefix" moved
    rm "moved/$libdir"/libhtransformer*.so*
    moved=$PWD/moved
}

case $way in
pkg_config_shared)
    [ "$(pkg "$prefix" --modversion --silence-errors)" = "$version" ]
    eval "\"\$CC\" -std=c17 $strict \"\$source\" -o program -Wl,--no-as-needed" \
        "$(pkg "$prefix" --cflags --libs)"
    check ./program
    ;;
pkg_config_static)
    move
    eval "\"\$CC\" -std=c17 $strict $(pkg "$moved" --cflags --silence-errors)" \
        "\"\$source\" -o program $(pkg "$moved" --static --libs)"
    check ./program
    ;;
pkg_config_alone)
    # a program that needs no shared library at all, where all of them are here as archives
    flags=$(pkg "$prefix" --static --libs)
    for flag in $flags; do
        case $flag in
        -l* | -fopenmp)
            name=${flag#-l} && [ "$flag" != -fopenmp ] || name=gomp
            found=$("$CC" -print-file-name="lib$name.a" -L"$prefix/$libdir")
            [ -e "$found" ] || [ -e "$prefix/$libdir/lib$name.a" ] || {
                echo "there is no lib$name.a on this machine"
                exit 77
            }
            ;;
        esac
    done
    eval "\"\$CC\" -static -std=c17 $strict $(pkg "$prefix" --cflags --silence-errors)" \
        "\"\$source\" -o program $flags"
    check ./program
    if LC_ALL=C readelf -d program | grep NEEDED; then exit 1; fi
    ;;
cmake_shared | cmake_static)
    [ "$way" = cmake_shared ] || target=$static
    "$CMAKE" -S "$here/outside" -B . -DCMAKE_PREFIX_PATH="$prefix" -DVERSION="$version" \
        -DSOURCE="$source" -DCOMPONENTS="$components" -DTARGET=htransformer::$target \
        -DCMAKE_C_COMPILER="$CC"
    "$CMAKE" --build .
    check ./program
    ;;
subdirectory)
    # the libraries themselves are not built once more: what they hand on to a program is looked at
    for target in $target $static; do
        "$CMAKE" -S "$here/outside" -B "$target" -DSUBDIRECTORY="$here/../.." -DSOURCE="$source" \
            -DTARGET=htransformer::$target -DCMAKE_C_COMPILER="$CC" -DHT_CUDA=OFF
        "$CMAKE" --build "$target" --target compiles
    done
    ;;
cxx_header)
    # the header is C++ too, and so is the program
    for standard in 11 14 17 20; do
        "$CXX" -std=c++$standard -Wall -Wextra -Werror -pedantic-errors -fsyntax-only \
            -I"$prefix/include" "$here/header.cc"
    done
    eval "\"\$CXX\" -std=c++20 -Wall -Werror -x c++ \"\$source\" -x none -o program" \
        "-Wl,--no-as-needed $(pkg "$prefix" --cflags --libs)"
    check ./program
    ;;
*)
    echo "no such way: $way"
    exit 1
    ;;
esac
