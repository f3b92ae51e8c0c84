#!/bin/sh
# Makes .deb packages and a tarball in build/package/.
#
#     scripts/package.sh            builds and packs
#     scripts/package.sh --try      then installs them on a clean Debian 12 (debootstrap into a
#                                   temporary folder; root and a Debian mirror needed) and uses
#                                   them: a C program with the attention's library alone, then info,
#                                   training, a map, the manual page; and unpacks and runs the
#                                   tarball there. Takes minutes.
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
want dpkg-dev command -v dpkg-shlibdeps # names the libraries that the .debs depend on
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

say "the attention's library, alone, and a C program with it"
inside 'apt-get update -q >/dev/null
    apt-get install -y -q --no-install-recommends gcc libc6-dev pkg-config >/dev/null
    dpkg-query -W -f="\${Package}\n" | sort >/root/before
    apt-get install -y -q --no-install-recommends /root/libhtransformer1_*.deb \
        /root/libhtransformer-dev_*.deb >/dev/null
    dpkg-query -W -f="\${Package}\n" | sort | comm -13 /root/before - >/root/came
    cat /root/came; if grep -v "^libhtransformer\|^libgomp" /root/came; then exit 1; fi
    cd /root; cc attend.c -o attend $(pkg-config --cflags --libs htransformer); ./attend
    cc -static attend.c -o alone $(pkg-config --cflags --static --libs htransformer); ./alone'
say "all packages"
inside 'apt-get install -y -q --no-install-recommends /root/*.deb >/dev/null'
inside 'htransformer --version; htransformer info'
inside 'cd /root; htransformer train --run demo --steps 20 --layers 1 --width 32 --quiet
    htransformer report demo -o report.html; htransformer map --length 64 --block 4 --out h.png'
inside 'test -s /usr/share/man/man1/htransformer.1; test -s /root/report.html; test -s /root/h.png
    test -s /usr/share/bash-completion/completions/htransformer'
say "without the packages, from the tarball"
inside 'apt-get remove -y -q "libhtransformer*" >/dev/null; cd /root; tar xzf htransformer-*.tar.gz
    htransformer-*/bin/htransformer map --length 64 --block 4 | tail -n 1'
say "all of it works on a clean Debian 12"
