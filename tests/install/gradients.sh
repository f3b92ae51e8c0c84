# The example of forward and backward prints the same gradient twice.
# gradients.sh PROGRAM
set -eu
output=$("$1")
echo "$output"
echo "$output" | awk '{ gsub(",", ""); off = $4 - $7; if (off < 0) off = -off
    exit !($3 == "gradient" && $4 != 0 && off < 1e-5) }'
