# One image for every process of a job:   docker build -t esync .  &&  docker run --rm esync
# That trains alone; scripts/container.sh says how to start the others, and docs/containers.md how to keep the logs.
# Get the data before the build (scripts/get_data.sh), or mount it: -v "$PWD/data:/esync/data:ro"
FROM python:3.11-slim-bookworm

# Of the system MXNet's wheel expects these; slim images lack them.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libquadmath0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /esync

# Before the sources, so that a change in them does not install everything again.
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt

# docker build --build-arg TORCH=1 adds PyTorch's build for the CPU.
ARG TORCH=""
COPY requirements-torch.txt .
RUN [ -z "$TORCH" ] || pip install --no-cache-dir -r requirements-torch.txt

COPY . .

# Whoever it runs as (--user) can read all of it, also where the files came from a host with a strict umask, and write
# to the logs, the home and nothing else.
RUN find . ! -perm -a+r -exec chmod a+rX {} + \
    && mkdir logs \
    && chmod a+rwxt logs \
    && VENV=/usr/local bash -ec 'source scripts/common.sh && ensure_mxnet_hook' \
    && python -c 'import mxnet'
ENV HOME=/tmp PYTHONUNBUFFERED=1 ESYNC_IMAGE=1
USER 1000:1000

ENTRYPOINT ["scripts/container.sh"]
CMD ["-m", "local", "-c", "1", "-e", "1000"]
