# r3l with everything it needs, installed as `make` does it on a machine.
#
#   docker build --target cpu -t r3l:cpu .
#   docker build --target gpu -t r3l:gpu .
#   docker run --rm -v $PWD/runs:/r3l/runs r3l:cpu r3l-launch --run demo
#   docker run --rm --gpus all --shm-size 16g -v ~/models:/models -v $PWD/runs:/r3l/runs r3l:gpu \
#       r3l-launch --actors 4 --learner 4gpu --model /models/Qwen2.5-1.5B-Instruct --env countdown
#
# The gpu target takes CUDA from PyTorch's wheels, and the driver from the host.

FROM python:3.11-slim-bookworm AS base
# A compiler for the kernels that Triton and torch make at run time.
RUN apt-get update && apt-get install -y --no-install-recommends \
        gcc g++ libc6-dev make libnuma1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /r3l
COPY . .
ENV PATH=/r3l/.venv/bin:$PATH PIP_NO_CACHE_DIR=1
CMD ["r3l-launch", "--help"]

FROM base AS cpu
RUN make .venv/.installed EXTRA=cpu

FROM base AS gpu
RUN make .venv/.installed EXTRA=gpu
