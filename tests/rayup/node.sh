#!/usr/bin/env bash
# One "machine" of tests/rayup/run.sh, inside its own network, PID and mount namespaces: node.sh FOLDER.
# Its /tmp, /dev/shm, /run, accounts and home folder are its own; an sshd runs until the namespace ends.
set -euo pipefail
folder=$1
mount --make-rprivate /
mount --bind "$folder/tmp" /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$folder/passwd" /etc/passwd
mount --bind "$folder/shadow" /etc/shadow
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f "$folder/sshd_config"
