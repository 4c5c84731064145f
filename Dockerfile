# syntax=docker/dockerfile:1.17
# Three images out of one file: `core` writes, serves and migrates; `worker` judges; `trainer` learns.
#
#   docker build --target worker --tag drkq-worker:0.1.0 .
#
# The base, torch and triton are pinned here and what else pip installs in deploy/constraints.txt; `deploy/pin.py` writes
# that file. For workers without a GPU name PyTorch's index of CPU builds by PIP_EXTRA_INDEX_URL: 1 GB in place of several.

ARG PYTHON=3.12.12-slim-bookworm

FROM python:${PYTHON} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY drkernel_q drkernel_q
COPY workers workers
COPY policy policy
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON} AS core
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1
# Volumes take owner and mode from what the image has in their place.
RUN groupadd --gid 10001 drkq \
    && useradd --uid 10001 --gid drkq --home-dir /var/lib/drkq --create-home --shell /usr/sbin/nologin drkq \
    && install --directory --owner drkq --group drkq --mode 0755 /runs /backup \
    && install --directory --mode 1777 /run/drkq/locks
COPY deploy/constraints.txt /etc/drkq/constraints.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    set -- /wheels/drkq-*.whl \
    && pip install --constraint /etc/drkq/constraints.txt "$1[postgres,gateway,flower]"
USER 10001:10001
WORKDIR /var/lib/drkq
ENTRYPOINT ["drkq"]
CMD ["--help"]

FROM core AS worker
ARG TORCH=2.11.0
ARG TRITON=3.6.0
ARG PIP_EXTRA_INDEX_URL=
# It becomes another user for each candidate, which only root may; compose.yaml takes everything else from it.
# hadolint ignore=DL3002
USER 0:0
# Triton compiles launchers with gcc. The base image decides the version: Debian keeps only the newest of a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    set -- /wheels/drkq-*.whl \
    && pip install --constraint /etc/drkq/constraints.txt "torch==${TORCH}" "triton==${TRITON}" "$1[worker]"
CMD ["worker"]

FROM worker AS trainer
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    set -- /wheels/drkq-*.whl \
    && pip install --constraint /etc/drkq/constraints.txt "$1[policy,postgres]"
USER 10001:10001
CMD ["train", "--help"]
