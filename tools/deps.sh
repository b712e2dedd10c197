#!/bin/sh
# Install the Debian packages of tools/packages.txt that are missing.  Needs no root when none is.
set -eu
list=$(dirname "$0")/packages.txt
missing=
for p in $(grep -v '^#' "$list"); do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
if [ "$(id -u)" -eq 0 ]; then
    sudo=
elif command -v sudo >/dev/null 2>&1; then
    sudo=sudo
else
    echo "deps: these Debian packages are missing and you are not root:$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -q
# shellcheck disable=SC2086
$sudo apt-get install -y -q --no-install-recommends $missing
