#!/usr/bin/env bash
# Builds the image and brings docker-compose.yml up on an engine of its own: private data, its own network namespace.
# Needs root on Debian, with dockerd, debootstrap, iptables, tini and, as plugin of the docker command, compose:
# `--install` gets them as packages. Image registries are not needed: base images are made from Debian's packages.
#
#   tests/compose/run.sh [--install] [--keep FOLDER]     FOLDER keeps layers and logs, so that the next run is quicker
#
# SLACK=3 waits three times as long for everything, on a machine that does other work as well.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
SLACK=${SLACK:-1}
LIMIT_S=${LIMIT_S:-$((2400 * SLACK))}
export DOCKER_BUILDKIT=0 COMPOSE_PROFILES=cpu COMPOSE_PROJECT_NAME=tamiyo COMPOSE_ANSI=never COMPOSE_PROGRESS=plain
export TAMIYO_ACTORS_MOST=4 TAMIYO_LEARNER_CPUS=1
TAMIYO_FLAGS="--env.tasks spirals --env.horizon_epochs 4 --env.inner_steps 2 --actors.envs_per_actor 2"
export TAMIYO_FLAGS="$TAMIYO_FLAGS --learner.batch_episodes 4 --learner.updates 100000 --learner.max_policy_lag 8"

install=0 keep=""
while [ $# -gt 0 ]; do
    case $1 in
        --install) install=1 ;;
        --keep) keep=$2 && shift ;;
        *) echo "usage: $0 [--install] [--keep FOLDER]" >&2 && exit 2 ;;
    esac
    shift
done
[ "$(id -u)" = 0 ] || { echo "$0 makes namespaces and mounts: run it as root" >&2; exit 2; }
WORK=${keep:-$(mktemp -d /tmp/tamiyo-compose.XXXXXX)}
mkdir -p "$WORK"
export DOCKER_HOST=unix://$WORK/docker.sock
ENGINE=0
began=$SECONDS

say() { printf '%4d s  %s\n' $((SECONDS - began)) "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

compose() {
    docker compose --project-directory "$WORK/project" -f "$WORK/project/docker-compose.yml" \
        -f "$WORK/project/tests/compose/override.yml" "$@"
}

# until_true SECONDS WHAT COMMAND...: again and again until it succeeds
until_true() {
    local deadline=$((SECONDS + SLACK * $1)) what=$2
    shift 2
    until "$@" > "$WORK/last.log" 2>&1; do
        [ $SECONDS -lt $deadline ] || { tail -n 20 "$WORK/last.log" >&2; fail "waited in vain: $what"; }
        sleep 1
    done
    say "$what"
}

start_engine() { # start_engine NAMESPACES FLAG...: dockerd in namespaces of its own
    local namespaces=$1
    shift
    # shellcheck disable=SC2086
    unshare $namespaces sh -c 'ip link set lo up; exec "$@"' sh dockerd --data-root "$WORK/data" \
        --exec-root "$WORK/exec" --pidfile "$WORK/docker.pid" --host "$DOCKER_HOST" --storage-driver overlay2 \
        "$@" > "$WORK/dockerd.log" 2>&1 &
    ENGINE=$!
    until_true 60 "engine up" docker version
}

stop_engine() {
    [ "$ENGINE" != 0 ] || return 0
    kill "$ENGINE" 2> /dev/null || true
    for _ in $(seq 30); do
        kill -0 "$ENGINE" 2> /dev/null || break
        sleep 1
    done
    kill -9 "$ENGINE" 2> /dev/null || true
    wait "$ENGINE" 2> /dev/null || true
    if [ -f "$WORK/exec/containerd/containerd.pid" ]; then
        kill -9 "$(cat "$WORK/exec/containerd/containerd.pid")" 2> /dev/null || true
    fi
    ENGINE=0
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    kill "$ALARM" 2> /dev/null || true
    if [ "$status" != 0 ] && [ "$ENGINE" != 0 ] && [ -d "$WORK/project" ]; then
        compose ps -a > "$WORK/ps.log" 2>&1 || true
        compose logs --no-color --tail 60 > "$WORK/services.log" 2>&1 || true
        cat "$WORK/ps.log" >&2 && tail -n 120 "$WORK/services.log" >&2
    fi
    if [ "$ENGINE" != 0 ]; then compose down -v --timeout 10 > /dev/null 2>&1 || true; fi
    stop_engine
    rm -rf "$WORK/project" "$WORK/exec" "$WORK/secrets" "$WORK/docker.sock" "$WORK/docker.pid"
    find /sys/fs/cgroup -depth -type d -path '*/docker*' -exec rmdir {} + 2> /dev/null || true
    [ -n "$keep" ] || rm -rf "$WORK"
    [ "$status" = 0 ] && say "all well, and everything taken down"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
# A shell hears a signal when its command ends: the engine's end ends every one.
(sleep "$LIMIT_S"; kill -TERM $$; kill "$(cat "$WORK/docker.pid")") > /dev/null 2>&1 &
ALARM=$!

get_tools() {
    if [ -d "$WORK/config" ]; then export DOCKER_CONFIG=$WORK/config; fi # of an earlier run
    if [ $install = 1 ]; then
        apt-get install -y -qq --no-install-recommends docker.io debootstrap iptables tini iproute2 \
            > "$WORK/apt.log" 2>&1
        if ! docker compose version > /dev/null 2>&1; then
            # Debian 12 has no compose of version 2: the next release's package is only unpacked.
            mkdir -p "$WORK/apt/lists/partial" "$WORK/config/cli-plugins"
            sed 's/bookworm/trixie/g' /etc/apt/sources.list.d/debian.sources > "$WORK/apt/trixie.sources"
            (
                cd "$WORK/apt"
                options="-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null
                    -o Dir::Etc::SourceList=$WORK/apt/trixie.sources -o Dir::State::Lists=$WORK/apt/lists"
                # shellcheck disable=SC2086
                apt-get update -qq $options && apt-get download -qq $options docker-compose
                dpkg-deb -x docker-compose_*.deb unpacked
                install -m 755 unpacked/usr/libexec/docker/cli-plugins/docker-compose "$WORK/config/cli-plugins/"
            )
            export DOCKER_CONFIG=$WORK/config
        fi
    fi
    for tool in dockerd debootstrap iptables ip unshare nsenter; do
        command -v $tool > /dev/null || fail "$tool is missing: try --install"
    done
    docker compose version > /dev/null 2>&1 || fail "docker has no compose plugin: try --install"
    [ -x "$PYTHON" ] || fail "$PYTHON is missing: make install, or give PYTHON"
    say "$(docker compose version), $(dockerd --version)"
}

make_bases() { # under the names that the compose file uses
    local mirror base=$WORK/base
    if ! docker image inspect debian:bookworm-slim > /dev/null 2>&1; then
        mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -n 1)
        debootstrap --variant=minbase bookworm "$base" "$mirror" > "$WORK/debootstrap.log"
        cp /etc/apt/sources.list.d/debian.sources "$base/etc/apt/sources.list.d/" && : > "$base/etc/apt/sources.list"
        cp /usr/share/keyrings/debian-archive-keyring.gpg "$base/usr/share/keyrings/" 2> /dev/null || true
        # This machine's trust in its package index, wherever that is.
        cp /etc/ssl/certs/ca-certificates.crt "$base/etc/machine-ca.crt"
        printf '[global]\ncert = /etc/machine-ca.crt\ntimeout = 180\n' > "$base/etc/pip.conf"
        rm -rf "$base"/var/cache/apt/archives/*.deb "$base"/var/lib/apt/lists/* "$base"/usr/share/doc/* \
            "$base"/usr/share/man/* "$base"/usr/share/locale/*
        tar -C "$base" -c . | docker import - debian:bookworm-slim > /dev/null
        rm -rf "$base"
    fi
    mkdir -p "$WORK/bases"
    cp "$("$PYTHON" -c 'from deploy.launch.embedded_redis import find_server; print(find_server())')" "$WORK/bases/valkey-server"
    docker build -q --network host -t valkey/valkey:8.1 -f - "$WORK/bases" > /dev/null <<'DOCKERFILE'
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends redis-tools && rm -rf /var/lib/apt/lists/* \
    && ln -s redis-cli /usr/bin/valkey-cli && groupadd -r -g 999 valkey && useradd -r -g valkey -u 999 valkey \
    && install -d -o valkey -g valkey /data
COPY valkey-server /usr/local/bin/
WORKDIR /data
DOCKERFILE
    docker build -q --network host -t prom/prometheus:v3.5.0 -f - "$WORK/bases" > /dev/null <<'DOCKERFILE'
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
    && install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
DOCKERFILE
    say "base images: debian, valkey, prometheus"
}

build_ours() {
    mkdir -p "$WORK/project"
    (cd "$ROOT" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$WORK/project")
    if [ ! -d "$WORK/wheels" ]; then # the CPU build of PyTorch, where pip offers it here
        "$PYTHON" -m pip download -q --no-deps -d "$WORK/wheels" -c "$ROOT/constraints.txt" torch
    fi
    mkdir -p "$WORK/project/deploy/wheels"
    cp "$WORK"/wheels/*.whl "$WORK/project/deploy/wheels/"
    docker build --network host -f "$WORK/project/deploy/Dockerfile" -t tamiyo:cpu "$WORK/project" > "$WORK/build.log" 2>&1 \
        || { tail -n 40 "$WORK/build.log" >&2; fail "the image does not build"; }
    rm -rf "$WORK/project/deploy/wheels"
    say "image tamiyo:cpu: $(($(docker image inspect -f '{{.Size}}' tamiyo:cpu) / 1000000)) MB"
    [ "$(docker run --rm --network host --entrypoint id tamiyo:cpu -u)" = 10001 ] || fail "the image runs as root"
}

fair_share() { # all containers together would get the time of one process of this machine, however busy that is
    local shares=/sys/fs/cgroup/cpu/docker/cpu.shares weight=/sys/fs/cgroup/docker/cpu.weight
    mkdir -p "$(dirname $shares)" 2> /dev/null || mkdir -p "$(dirname $weight)" 2> /dev/null || true
    if [ -w $shares ]; then echo 10240 > $shares; elif [ -w $weight ]; then echo 1000 > $weight; fi
}

inside() { nsenter --net --target "$(cat "$WORK/docker.pid")" "$@"; } # outside of containers, where ports are published

ask() { (cd "$ROOT" && inside env PYTHONPATH="$ROOT" OMP_NUM_THREADS=1 "$PYTHON" -m tests.compose.ask 127.0.0.1:50051 "$WORK/secrets"); }

query() { # of Prometheus: the largest value of a query, 0 without any
    compose exec -T prometheus wget -q -O - "http://127.0.0.1:9090/api/v1/query?query=$1" \
        | "$PYTHON" -c 'import json, sys
print(max((int(float(r["value"][1])) for r in json.load(sys.stdin)["data"]["result"]), default=0))'
}

steady_query() { # tried again where the busy engine fails to start a process in the container
    for _ in 1 2 3 4 5; do
        if query "$1" 2> "$WORK/query.log"; then return; fi
        sleep 2
    done
    cat "$WORK/query.log" >&2
    return 1
}

above() { [ "$(query "$1")" -gt "$2" ]; }

status() { # of the run, as its store tells it
    compose run --rm --no-deps -T status status --json --redis redis://monitor@redis:6379/0 2> /dev/null
}

seen() { # as many actors told of themselves within the last 30 s
    [ "$(status | "$PYTHON" -c 'import json, sys, time
actors = json.load(sys.stdin)["actors"]
print(len({name.split("/")[0] for name, told in actors.items() if told["reported_s"] > time.time() - 30}))')" = "$1" ]
}

healthy() { # as many containers of a service are
    [ "$(compose ps --format json "$1" | grep -o '"Health":"healthy"' | wc -l)" = "$2" ]
}

kill_one() { # as a crash, not as `docker kill`, which turns the restart policy off
    local container
    container=$(compose ps -q "$1" | head -n 1)
    kill -9 "$(docker inspect -f '{{.State.Pid}}' "$container")"
    until_true 120 "$1 killed, and started again" \
        sh -c "[ \$(docker inspect -f '{{.RestartCount}}' $container) -gt 0 ] && [ \$(docker inspect -f '{{.State.Running}}' $container) = true ]"
}

get_tools
rm -rf "$WORK/data/containers" "$WORK/data/network" "$WORK/data/volumes" # of an earlier run that was cut off
# Images are built in the network of this machine, which reaches its package indexes.
start_engine --mount --bridge=none --iptables=false
make_bases
build_ours
stop_engine

start_engine "--mount --net"
fair_share
compose config -q
say "docker compose reads the file"
timeout $((600 * SLACK)) docker compose --project-directory "$WORK/project" -f "$WORK/project/docker-compose.yml" \
    -f "$WORK/project/tests/compose/override.yml" up -d --no-build --pull never > "$WORK/up.log" 2>&1 \
    || { tail -n 30 "$WORK/up.log" >&2; fail "docker compose up"; }
for service in redis learner fleet serve prometheus grafana; do
    until_true 300 "$service is healthy" healthy $service 1
done
until_true 240 "two actors' machines are healthy" healthy actors 2
until_true 120 "updates happen, as Prometheus tells" above tamiyo_update 2
until_true 60 "two actors play" seen 2
for job in learner fleet serve prometheus; do
    until_true 60 "$job is scraped" above "up%7Bjob%3D%22$job%22%7D" 0
done
until_true 60 "Ray's own metrics are scraped, of three machines" above 'count(up%7Bjob%3D%22ray%22%7D%3D%3D1)' 2

mkdir -p "$WORK/secrets"
for file in serve:serve.crt serve:serve.token fleet:ray.token; do
    compose cp "${file%%:*}:/run/tamiyo/${file#*:}" "$WORK/secrets/" > /dev/null 2>&1
done
for service in redis learner fleet actors serve grafana; do
    has=$(compose exec -T "$service" ls /run/tamiyo | tr -d '\r' | sort | tr '\n' ' ')
    own=$(cd "$ROOT" && "$PYTHON" -c "from deploy.commands.admin.secrets import SERVICES; print(*sorted(SERVICES['$service']), '')")
    [ "$has" = "$own" ] || fail "$service sees $has, and its own are $own"
done
say "every service sees its own secrets and no other"
until_true 60 "the policy answers from outside with its token, and not without" ask
inside "$PYTHON" -c "
import urllib.error, urllib.request
token = open('$WORK/secrets/ray.token').read().strip()
ask = lambda **h: urllib.request.urlopen(urllib.request.Request('http://127.0.0.1:8265/api/v0/nodes', headers=h), timeout=20)
assert ask(Authorization=f'Bearer {token}').status == 200
try:
    ask()
except urllib.error.HTTPError as error:
    assert error.code in (401, 403), error
else:
    raise SystemExit('open to everybody')
" || fail "the Ray dashboard does not answer its token, or answers without"
say "the Ray dashboard answers its token, and nobody else"
published=$(inside ss -Hltn | awk '{print $4}' | grep -v -E '^127\.0\.0\.' || true)
[ -z "$published" ] || fail "ports beyond loopback: $published"
say "no port is open beyond loopback"

for service in learner actors redis; do
    before=$(steady_query tamiyo_update) || fail "Prometheus does not answer a query"
    kill_one $service
    until_true 180 "$service is healthy again" healthy $service "$([ $service = actors ] && echo 2 || echo 1)"
    until_true 180 "and updates go on after $before" above tamiyo_update "$before"
done
until_true 120 "two actors play again" seen 2

compose up -d --no-build --pull never --no-recreate --scale actors=4 > "$WORK/scale.log" 2>&1
until_true 240 "scaled: four machines are healthy" healthy actors 4
until_true 240 "four actors play" seen 4
status > "$WORK/status.json"
"$PYTHON" -c "import json; s = json.load(open('$WORK/status.json')); assert s['exact'], s['fault']; print(s['ledger'])" \
    || fail "the accounts do not add up"
say "every episode is accounted for"
docker stats --no-stream --format '       {{.Name}}  {{.CPUPerc}}  {{.MemUsage}}'

compose down --timeout 60 > "$WORK/down.log" 2>&1
[ -z "$(docker ps -aq)" ] || fail "containers are left"
say "down; volumes stay: $(docker volume ls -q | tr '\n' ' ')"
compose up -d --no-build --pull never > "$WORK/up.log" 2>&1
until_true 240 "up again: the learner goes on in its folder" healthy learner 1
until_true 120 "and its policy is served" healthy serve 1
until_true 60 "with the same token" ask
