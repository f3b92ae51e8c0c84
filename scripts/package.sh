#!/bin/sh
# Makes a .deb and a tarball in build/package/.
#
#     scripts/package.sh            builds and packs
#     scripts/package.sh --try      then installs the .deb on a clean Debian 12 (debootstrap into a
#                                   temporary folder; root and a Debian mirror needed) and uses it:
#                                   info, training, a map, the manual page, a C program; and unpacks
#                                   and runs the tarball there. Takes minutes.
set -eu
cd "$(dirname "$0")/.."
. scripts/deps.sh
try=${1:-}
case $try in
"" | --try) ;;
*)
    echo "scripts/package.sh: there is no option '$try', but --try" >&2
    exit 2
    ;;
esac

scripts/build.sh
want dpkg-dev command -v dpkg-shlibdeps # names the libraries that the .deb depends on
[ -z "$try" ] || need debootstrap command -v debootstrap
install_missing
cmake -S . -B build >/dev/null # finds dpkg-shlibdeps if it is new
rm -rf build/package
(cd build && cpack -B package >package.log) || {
    cat build/package.log
    exit 1
}
rm -rf build/package/_CPack_Packages
say "made:"
ls -1 build/package
[ -n "$try" ] || exit 0

[ "$(id -u)" = 0 ] || { echo "scripts/package.sh --try must be run by root" >&2; exit 1; }
root=$(mktemp -d)
chmod 755 "$root" # for the user that apt downloads as
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf "$root"' EXIT
say "a clean Debian 12 in $root"
debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log"
    exit 1
}
rm -f "$root.log"
mount -t proc proc "$root/proc" 2>/dev/null || say "no /proc there; going on without"
cp build/package/*.deb build/package/*.tar.gz examples/attend.c "$root/root/"

# inside COMMAND: in the clean root, with nothing of this machine's settings
inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
        LC_ALL=C.UTF-8 chroot "$root" /bin/sh -euc "$1"
}

say "the .deb"
inside 'apt-get update -q >/dev/null
    apt-get install -y -q --no-install-recommends /root/*.deb >/dev/null'
inside 'htransformer --version; htransformer info'
inside 'cd /root; htransformer train --run demo --steps 20 --layers 1 --width 32 --quiet
    htransformer report demo -o report.html; htransformer map --length 64 --block 4 --out h.png'
inside 'test -s /usr/share/man/man1/htransformer.1; test -s /root/report.html; test -s /root/h.png
    test -s /usr/share/bash-completion/completions/htransformer'
say "a C program against it"
inside 'apt-get install -y -q --no-install-recommends gcc libc6-dev pkg-config >/dev/null
    cd /root; cc attend.c -o attend $(pkg-config --cflags --libs htransformer); ./attend'
say "without the package, from the tarball"
inside 'dpkg -r htransformer >/dev/null; cd /root; tar xzf htransformer-*.tar.gz
    htransformer-*/bin/htransformer map --length 64 --block 4 | tail -n 1'
say "all of it works on a clean Debian 12"
