# Installs a build into a fresh prefix.
# install.sh CMAKE BUILD-DIRECTORY PREFIX
set -eu
rm -rf "$3"
"$1" --install "$2" --prefix "$3"
