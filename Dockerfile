# One image for the gateway, the simulated exchange and the subscriber: `feedhandler COMMAND`.
# The first stage compiles; the second carries no compiler.
FROM python:3.11-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m venv /opt/feedhandler \
    && /opt/feedhandler/bin/pip install --no-cache-dir .

FROM python:3.11-slim
COPY --from=build /opt/feedhandler /opt/feedhandler
# It listens on every address: inside a container, loopback is nobody's but the container's.
COPY docs/gateway.compose.toml /etc/feedhandler/gateway.toml
ENV PATH=/opt/feedhandler/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --no-create-home feedhandler
USER feedhandler
STOPSIGNAL SIGTERM
ENTRYPOINT ["feedhandler"]
CMD ["run", "/etc/feedhandler/gateway.toml"]
