#!/usr/bin/env bash
# Run README's first command and the fast lane on a Python that this machine lacks, as `tests/run_on_python.sh 3.15`.
# Debian's unstable packages are unpacked into a folder (the second argument; by default a temporary one that is removed),
# where everything runs in a chroot. Needs root, debootstrap and a package index.
set -euo pipefail
version=$1
checkout=$(cd "$(dirname "$0")/.." && pwd)
if [ -n "${2:-}" ]; then
    root=$2
else
    root=$(mktemp -d)
fi

end() {
    umount "$root/dev/shm" "$root/proc" 2>/dev/null || true
    [ -n "${kept:-}" ] || rm -rf --one-file-system "$root"
}
kept=${2:-}
trap end EXIT

[ -e "$root/bin/sh" ] || debootstrap --variant=minbase --include=ca-certificates sid "$root" http://deb.debian.org/debian
mkdir -p "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"  # for semaphores of multiprocessing
chroot "$root" apt-get install -y -qq --no-install-recommends "python$version" "python$version-venv"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"  # of package indexes with a certificate of their own

rm -rf "$root/checkout"
git clone -q "$checkout" "$root/checkout"
chroot "$root" bash -euo pipefail -s "$version" <<'END'
export PIP_CERT=/etc/ssl/certs/ca-certificates.crt LC_ALL=C.UTF-8 HOME=/root
cd /checkout
"python$1" -m venv .venv && . .venv/bin/activate
python --version
pip install -q .
packer demo --output ../packer-demo
pip install -q ".[store,fast,dev]"
pip list
pytest -n 2 -p no:cacheprovider @tests/fast.txt
END
