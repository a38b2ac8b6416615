#!/usr/bin/env bash
# A fresh Debian 12 in a folder: what a machine has on which topkd gets installed.
#
#   make_root.sh FOLDER
#
# From the package archive that this machine's apt uses. The libraries that topkd's packages depend
# on are in it, since the machine booted from it has no network; a test fails when one is missing.
set -euo pipefail

folder=$1
packages=(
    systemd systemd-sysv dbus      # an init to boot
    procps                         # of the tests: pgrep, pkill
    libuv1 libyaml-0-2             # of the packages: Depends
)

# Nothing here survives a power failure anyway, so nothing waits for the disk; and nobody reads
# translations.
exec mmdebstrap --quiet --variant=minbase --mode=root \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
    --aptopt='Acquire::http::Timeout "60"' --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include="$(IFS=,; echo "${packages[*]}")" bookworm "$folder"
