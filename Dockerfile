# dedupd in a container: no root, nothing writable but the state volume. With --read-only, `audit`, `state inspect` and
# `state export` also need -v /tmp, for temporary files.
#   docker build -t dedupd .
#   docker run --read-only -v dedupd-state:/var/lib/dedupd dedupd run --bootstrap-servers … --raw … --clean … --id json:/id
FROM rust:1.95.0-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends libcurl4-openssl-dev libsasl2-dev libssl-dev pkg-config \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY src src
COPY benches benches
# Without line tables the binary has a fifth of the size. Panics name their line without them, and a backtrace its
# functions, which a full strip would remove.
ENV CARGO_PROFILE_RELEASE_DEBUG=none CARGO_PROFILE_RELEASE_STRIP=debuginfo
RUN cargo build --release --locked --bin dedupd --features msk-iam

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates krb5-user libcurl4 libsasl2-modules-gssapi-mit libssl3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home dedupd \
    && install -d -o dedupd /var/lib/dedupd
COPY --from=build /src/target/release/dedupd /usr/local/bin/dedupd
USER 10001
VOLUME /var/lib/dedupd
ENV DEDUPD_STATE__DIR=/var/lib/dedupd \
    DEDUPD_HTTP__LISTEN=0.0.0.0:9464
EXPOSE 9464
# Not ready is unhealthy. Where that restarts a container (Docker Swarm): --health-cmd "dedupd health --live".
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["dedupd", "health"]
# SIGTERM commits what is open and leaves; that takes up to nine seconds.
STOPSIGNAL SIGTERM
ENTRYPOINT ["dedupd"]
CMD ["--help"]
