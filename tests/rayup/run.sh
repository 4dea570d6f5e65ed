#!/usr/bin/env bash
# A real `ray up`, `tamiyo train` and `ray down` of deploy/ray-cluster.local.yaml on two "machines" that are namespaces of
# this one: own network, processes, /tmp and sshd each, reached by ssh with a key made for the occasion. Nothing outside
# them is touched, all is gone at the end, and no step can take for ever.
#
# As root on Linux, with iproute2, openssh-server, rsync and netcat-openbsd:  PYTHON=.venv/bin/python tests/rayup/run.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
python=${PYTHON:-$repository/.venv/bin/python}
for tool in ip unshare nsenter /usr/sbin/sshd ssh ssh-keygen rsync nc; do
    command -v "$tool" > /dev/null || { echo "rayup: $tool is missing" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "rayup: only root can make namespaces" >&2; exit 2; }

head=10.77.7.1 worker=10.77.7.2
work=$(mktemp -d /var/tmp/rayup.XXXXXX)
chmod 755 "$work"
name=rayup$$
started=()

clean() {
    status=$?
    trap - EXIT INT TERM
    for pid in "${started[@]}"; do kill -9 "$pid" 2> /dev/null || true; done # with it ends its PID namespace
    wait 2> /dev/null || true
    for side in a b; do ip netns del "$name$side" 2> /dev/null || true; done
    if [ "$status" != 0 ] && [ -n "${RAYUP_KEEP:-}" ]; then echo "rayup: left in $work" >&2; else rm -rf "$work"; fi
    exit "$status"
}
trap clean EXIT
trap 'exit 130' INT TERM

say() { echo "rayup: $* (${SECONDS} s)"; }
bounded() { timeout --kill-after=10 "$@" & wait $!; } # a signal is heard while it runs

# Two networks, joined by a cable; each takes the other for the way out, as Ray asks the kernel for it.
ip netns add "${name}a"
ip netns add "${name}b"
ip link add "${name}v" netns "${name}a" type veth peer name "${name}w" netns "${name}b"
for side in a:v:$head:$worker b:w:$worker:$head; do
    IFS=: read -r letter end own other <<< "$side"
    ip -n "$name$letter" link set lo up
    ip -n "$name$letter" addr add "$own/24" dev "$name$end"
    ip -n "$name$letter" link set "$name$end" up
    ip -n "$name$letter" route add default via "$other"
done

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
for letter in a b; do
    node=$work/$letter
    mkdir -p "$node/home" "$node/tmp"
    chmod 1777 "$node/tmp"
    ssh-keygen -q -t ed25519 -N '' -f "$node/host_key"
    sed "s#^root:.*#root:x:0:0:root:$node/home:/bin/bash#" /etc/passwd > "$node/passwd"
    sed 's#^root:.*#root:*:19000:0:99999:7:::#' /etc/shadow > "$node/shadow"
    chmod 600 "$node/shadow"
    cat > "$node/home/.bashrc" << END
export PATH=$(dirname "$python"):\$PATH PYTHONPATH=$repository OMP_NUM_THREADS=1 RAY_raylet_start_wait_time_s=240
END
    cat > "$node/sshd_config" << END
HostKey $node/host_key
AuthorizedKeysFile $work/key.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
Subsystem sftp internal-sftp
END
    ip netns exec "$name$letter" unshare --pid --fork --kill-child --mount --mount-proc \
        bash "$here/node.sh" "$node" > "$node/sshd.log" 2>&1 &
    started+=($!)
done

# Whoever says `ray up`: a shell in the head's network, with a home and a /tmp of its own.
mkdir -p "$work/home/.ray" "$work/home/.tamiyo" "$work/tmp"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$work/home/.ray/auth_token"
head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$work/home/.tamiyo/gcs_redis_password"
chmod 600 "$work/home/.ray/auth_token" "$work/home/.tamiyo/gcs_redis_password"
password=$(cat "$work/home/.tamiyo/gcs_redis_password")
outside() { # SECONDS COMMAND...
    local limit=$1
    shift
    HOME=$work/home PATH=$(dirname "$python"):$PATH PYTHONPATH=$repository OMP_NUM_THREADS=1 RAY_AUTH_MODE=token \
        RAY_USAGE_STATS_ENABLED=0 TAMIYO_REDIS_PASSWORD=$password TERM=dumb bounded "$limit" ip netns exec "${name}a" \
        unshare --mount bash -c 'mount --make-rprivate / && mount --bind "$0" /tmp && exec "$@"' "$work/tmp" "$@"
}
on() { # MACHINE SECONDS COMMAND: as Ray does it, by an interactive shell
    bounded "$2" ip netns exec "${name}a" ssh -i "$work/key" -o StrictHostKeyChecking=no -o LogLevel=ERROR \
        -o UserKnownHostsFile=/dev/null -o ConnectTimeout=5 "root@$1" "bash --login -c -i $(printf %q "source ~/.bashrc; $3")" 2>> "$work/on.log"
}
for machine in $head $worker; do
    for _ in $(seq 50); do on "$machine" 5 true && break || sleep 0.2; done
    on "$machine" 5 true || { echo "rayup: no ssh to $machine" >&2; cat "$work"/*/sshd.log >&2; exit 1; }
done
say "two machines answer by ssh"

# The server that GCS keeps its state in, and the run its episodes.
on $head 20 "setsid python -m tests.rayup.server $head 6380 $work > $work/server.log 2>&1 < /dev/null &"
"$python" "$here/fill_in.py" "$repository/deploy/ray-cluster.local.yaml" "$head" "$worker" "$work/key" "$head:6380" \
    > "$work/cluster.yaml"

nodes() { on $head 60 'python -m tests.rayup.look nodes' | tr -d '\r'; }
joined=
for attempt in 1 2 3; do # on a busy machine Ray gives its own processes too little time to start
    outside 300 ray up --yes --no-config-cache "$work/cluster.yaml" > "$work/up.log" 2>&1 || continue
    say "ray up returned"
    until=$((SECONDS + 100))
    while [ $SECONDS -lt $until ] && [ -z "$joined" ]; do [ "$(nodes || true)" = 2 ] && joined=1 || sleep 2; done
    [ -z "$joined" ] || break
    say "attempt $attempt: the worker did not join"
done
[ -n "$joined" ] || { tail -30 "$work/up.log"; on $head 60 'tail -n 60 /tmp/ray/session_latest/logs/monitor*'; exit 1; }
say "both machines are in the cluster"
lines() { on $head 20 'cat /proc/[0-9]*/cmdline' | tr '\0' ' '; } # of every process on the head
[ "$(lines | grep -c gcs_server)" -ge 1 ] || { echo "rayup: no command lines were seen" >&2; exit 1; }
if lines | grep -q -- "$password"; then echo "rayup: a command line shows the password of GCS's Redis" >&2; exit 1; fi
say "no command line on the head shows the password of GCS's Redis"
look="$python -m tests.rayup.look nodes ray://$head:10001"
[ "$(outside 90 $look)" = 2 ] # with the token; and without:
if outside 90 env HOME="$work/tmp" RAY_AUTH_MODE=disabled $look > "$work/stranger.log" 2>&1; then
    echo "rayup: the cluster let a stranger without its token in" >&2
    exit 1
fi
say "who has no token is refused"
[ "$(on $head 30 "python -m tests.rayup.look keys redis://:$password@$head:6380/0" | tr -d '\r')" -gt 0 ]
say "GCS keeps its state in the server outside"

small="--env.tasks spirals --env.backend torch --env.horizon_epochs 4 --env.inner_steps 2 --actors.envs_per_actor 2 --learner.batch_episodes 8
    --run.reference_episodes 2 --run.root $work/runs --redis redis://$head:6380/1"
train="TAMIYO_REDIS_PASSWORD_FILE=~/.tamiyo/gcs_redis_password tamiyo train --address auto --run.name inside --actors.count auto
    --learner.updates 400 $small" # long enough for all actors to play, on a busy machine too
outside 600 ray exec "$work/cluster.yaml" "$(echo $train)" > "$work/inside.log" 2>&1 || { tail -30 "$work/inside.log"; exit 1; }
"$python" "$here/look.py" run "$work/runs/inside" 3 || { tail -40 "$work/inside.log"; exit 1; }
say "tamiyo train --address auto ran on both"
outside 600 tamiyo train --address "ray://$head:10001" --run.name outside --actors.count 2 --learner.updates 3 \
    --run.ship code $small > "$work/outside.log" 2>&1 || { tail -30 "$work/outside.log"; exit 1; }
"$python" "$here/look.py" run "$work/runs/outside" 1 || { tail -40 "$work/outside.log"; exit 1; }
say "tamiyo train --address ray:// ran from outside"

outside 120 ray down --yes "$work/cluster.yaml" > "$work/down.log" 2>&1 || { tail -30 "$work/down.log"; exit 1; }
on $worker 60 'ray stop' > /dev/null # which `ray down` leaves to you on machines of your own
for machine in $head $worker; do
    [ "$(on "$machine" 10 'pgrep -c "raylet|gcs_server" || true' | tr -d '\r')" = 0 ] || { echo "rayup: Ray still runs on $machine" >&2; exit 1; }
done
say "ray down: nothing is left"
