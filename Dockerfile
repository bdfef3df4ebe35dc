# Two images. `gateway`, the default: the gateway, the simulated exchange, the subscriber, every
# command without Spark. `spark`: the same with pyspark and Java, also for Spark's master and workers
# (spark-class). Both are `feedhandler COMMAND`. What compiles is in neither.
FROM python:3.11-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m venv /opt/feedhandler \
    && /opt/feedhandler/bin/pip install --no-cache-dir .

FROM build AS build-spark
RUN /opt/feedhandler/bin/pip install --no-cache-dir '.[spark]'

FROM python:3.11-slim AS spark
# Debian's own Java, 17 or later; Spark's scripts ask `ps` for processes.
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/feedhandler /opt/feedhandler
ENV PATH=/opt/feedhandler/bin:$PATH PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
# Volumes that are mounted there are this user's.
RUN useradd --system --no-create-home feedhandler \
    && install -d -o feedhandler /captures /report
USER feedhandler
STOPSIGNAL SIGTERM
ENTRYPOINT ["feedhandler"]

FROM python:3.11-slim AS gateway
COPY --from=build /opt/feedhandler /opt/feedhandler
# It listens on every address: inside a container, loopback is nobody's but the container's.
COPY docs/gateway.compose.toml /etc/feedhandler/gateway.toml
ENV PATH=/opt/feedhandler/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --no-create-home feedhandler
USER feedhandler
STOPSIGNAL SIGTERM
ENTRYPOINT ["feedhandler"]
CMD ["run", "/etc/feedhandler/gateway.toml"]
