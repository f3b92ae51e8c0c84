# README's program runs and prints what it promises.
# example.sh PROGRAM
set -eu
output=$("$1")
echo "$output"
case $output in
cpu:*": 1 ... 1") ;;
*) exit 1 ;;
esac
