#!/usr/bin/env bash
# Stand-ins for the images that deploy/Containerfile and deploy/compose/ start from, where no registry can be reached:
# `bash tests/image/bases.sh`, by hand, as root, with debootstrap, buildah and rustup. Then the real files run:
#   buildah bud --format docker --isolation chroot --network host --layers -f deploy/Containerfile -t waterwheel .
#   POSTGRES_PASSWORD=secret docker compose -f deploy/compose/compose.yaml up --no-build
# for which `docker compose` finds podman by DOCKER_HOST, with `podman system service --time=0 unix://SOCKET`. Without
# systemd, podman runs no health checks: call `podman healthcheck run NAME` in a loop. `restart` by podman 4.3 needs
# `-t 45`; it kills at once otherwise.
#
# They are Debian's packages: HAProxy 2.6 for 2.8, PostgreSQL 15 for 17, glibc for musl. Users, paths, stop signals and
# the two steps of the first start of PostgreSQL are those of the published images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
toolchain=$(rustc --print sysroot)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
debootstrap --variant=minbase bookworm root http://deb.debian.org/debian >log || { tail log; exit 1; }
printf 'FROM scratch\nCOPY root /\n' | buildah bud --quiet -f - -t localhost/bookworm . >/dev/null
rm -r root
cat >haproxy:2.8-alpine <<'END'
FROM localhost/bookworm
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends haproxy >/dev/null \
    && usermod --uid 99 haproxy && groupmod --gid 99 haproxy
STOPSIGNAL SIGUSR1
USER haproxy
ENTRYPOINT ["/usr/sbin/haproxy", "-W", "-db"]
CMD ["-f", "/usr/local/etc/haproxy/haproxy.cfg"]
END
cat >entrypoint.sh <<'END'
#!/bin/bash
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -m 700 "$PGDATA" /var/run/postgresql
    exec setpriv --reuid postgres --regid postgres --clear-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") >/dev/null
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    PGUSER=$POSTGRES_USER pg_ctl -o "-c listen_addresses=''" -w start
    psql --username "$POSTGRES_USER" --dbname postgres -c "CREATE DATABASE $POSTGRES_DB"
    pg_ctl -m fast -w stop
fi
exec "$@"
END
chmod +x entrypoint.sh
cat >postgres:17-alpine <<'END'
FROM localhost/bookworm
RUN mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf \
    && apt-get update -qq && apt-get install -qq -y --no-install-recommends postgresql >/dev/null \
    && usermod --uid 70 postgres && groupmod --gid 70 postgres \
    && sed -i "s/#listen_addresses = .*/listen_addresses = '*'/" /usr/share/postgresql/15/postgresql.conf.sample
ENV PGDATA=/var/lib/postgresql/data PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin
COPY entrypoint.sh /usr/local/bin/
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]
CMD ["postgres"]
END
# This machine's toolchain, which has the target of musl, and its certificates, for a proxy that has one of its own.
mkdir -p certificates cargo rustup/toolchains
cp /usr/local/share/ca-certificates/*.crt certificates/ 2>/dev/null || true
cp -r "${CARGO_HOME:-$HOME/.cargo}/bin" cargo/bin
name=${toolchain##*/}
tar --create --exclude=./share --directory "$toolchain" . | tar --extract --one-top-level="rustup/toolchains/$name"
printf 'version = "12"\ndefault_toolchain = "%s"\n' "$name" >rustup/settings.toml
cat >rust:1.95-slim-bookworm <<'END'
FROM localhost/bookworm
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends ca-certificates gcc libc6-dev >/dev/null
COPY certificates /usr/local/share/ca-certificates
RUN update-ca-certificates >/dev/null
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:/usr/bin:/usr/sbin:/bin:/sbin
COPY rustup /usr/local/rustup
COPY cargo /usr/local/cargo
END

for image in haproxy:2.8-alpine postgres:17-alpine rust:1.95-slim-bookworm; do
    buildah bud --quiet --isolation chroot --network host -f "$image" -t "docker.io/library/$image" . >/dev/null
done
