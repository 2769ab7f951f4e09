# The command `oneread`, as a server unless told otherwise (docs/OPERATIONS.md, "In a container"):
#   docker build --tag oneread .
#   docker run --detach --name table --shm-size 2g oneread
#   docker exec table oneread put greeting hello
FROM docker.io/library/rust:1.88-slim-bookworm AS build
WORKDIR /src
COPY . .
# Without what measures and predicts (docs/OPERATIONS.md, "Installing").
RUN cargo build --release --locked -p oneread-cli --features man,metrics && strip target/release/oneread

FROM docker.io/library/debian:bookworm-slim
COPY --from=build /src/target/release/oneread /usr/local/bin/oneread
RUN useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin oneread \
    && install --directory --owner oneread /run/oneread /var/lib/oneread
USER oneread
ENV ONEREAD_AT=shm:/run/oneread/oneread.sock
# The socket, for clients in other containers, and the snapshot.
VOLUME ["/run/oneread", "/var/lib/oneread"]
# The table is in /dev/shm, which has 64 MiB unless `--shm-size` says more. It ends with the container:
# the next one begins with the snapshot.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["oneread", "ping"]
ENTRYPOINT ["oneread"]
CMD ["serve", "--snapshot", "/var/lib/oneread/t.snap", "--snapshot-every", "60s"]
