# Images of Menura's parts, each with its own packages alone: `docker build --target gateway|sink|agent|object-store .`
# Versions are those of requirements.lock, whose hashes uv checks. No image has a compiler, a password or a root user.

FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev npm && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /source
COPY . .
RUN .ci/setup uplot
RUN uv build --wheel --build-constraint requirements.lock --out-dir /wheels
ENV VIRTUAL_ENV=/opt/menura UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN uv venv /opt/menura

FROM build AS gateway-packages
RUN uv pip install --no-cache --constraint requirements.lock "$(ls /wheels/*.whl)[api,postgresql]"
FROM build AS sink-packages
RUN uv pip install --no-cache --constraint requirements.lock "$(ls /wheels/*.whl)[spark,search]"
FROM build AS agent-packages
RUN uv pip install --no-cache --constraint requirements.lock "$(ls /wheels/*.whl)[agent]"

# What all parts have: Python, a user, folders of his for volumes, and nothing to write to elsewhere.
FROM python:3.11-slim-bookworm AS part
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin menura \
    && install --directory --owner menura --group menura --mode 0700 /var/lib/menura /var/lib/menura/ca /var/lib/menura-agent
ENV PATH=/opt/menura/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /tmp
USER menura

# The gateway and the API, which share the control plane's packages.
FROM part AS gateway
COPY --from=gateway-packages /opt/menura /opt/menura
COPY deployment/with-database /opt/menura/bin/with-database

# The sink and search, which share Arrow's and Delta's packages.
FROM part AS sink
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
COPY --from=sink-packages /opt/menura /opt/menura
ENV MENURA_JARS=/opt/menura/jars
RUN python -m spark_sink.jars /opt/menura/jars
USER menura

FROM part AS agent
COPY --from=agent-packages /opt/menura /opt/menura

# An object store for one machine. Name your own in its place where there is one.
FROM debian:bookworm-slim AS object-store
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin menura \
    && install --directory --owner menura --group menura --mode 0700 /var/lib/object-store
ADD --chmod=0444 --checksum=sha256:a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d \
    https://repo1.maven.org/maven2/org/gaul/s3proxy/4.1.0/s3proxy-4.1.0-jar-with-dependencies.jar /opt/object-store/s3proxy.jar
USER menura
