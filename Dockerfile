# r3l with everything it needs, installed as `make` does it on a machine.
#
#   docker build --target cpu -t r3l:cpu .
#   docker build --target gpu -t r3l:gpu .
#   mkdir -p runs && docker run --rm -v $PWD/runs:/r3l/runs r3l:cpu r3l-launch --run demo
#   docker run --rm --gpus all --shm-size 16g -v ~/models:/models -v $PWD/runs:/r3l/runs r3l:gpu \
#       r3l-launch --actors 4 --learner 4gpu --model /models/Qwen2.5-1.5B-Instruct --env countdown
#
# The gpu target takes CUDA from PyTorch's wheels, and the driver from the host. Nothing runs as root: the user r3l has
# the id 1000, so runs/ must be writable for that id (otherwise build with --build-arg UID=$(id -u)).
#
# The digest of a newer base: docker buildx imagetools inspect python:3.11-slim-bookworm

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base
# A compiler for the kernels that Triton and torch make at run time.
RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc g++ libc6-dev make libnuma1 \
    && rm -rf /var/lib/apt/lists/*
ARG UID=1000
RUN useradd --create-home --uid $UID r3l && install --directory --owner r3l /r3l /r3l/runs
USER r3l
WORKDIR /r3l
COPY --chown=r3l . .
ENV PATH=/r3l/.venv/bin:$PATH PIP_NO_CACHE_DIR=1
CMD ["r3l-launch", "--help"]

# Compiled modules of a container would be lost with it. Some packages' files are no Python of this version.
FROM base AS cpu
RUN make .venv/.installed EXTRA=cpu && { python -m compileall -qq -j 0 .venv || true; }

FROM base AS gpu
RUN make .venv/.installed EXTRA=gpu && { python -m compileall -qq -j 0 .venv || true; }
